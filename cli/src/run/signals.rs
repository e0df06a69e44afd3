//! The signals that `run` receives, and the events that it handles in one queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{CancelToken, Error, FencingToken, ObservedLock, Observer};
use nix::sys::signal::SigSet;
#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use signal_hook::iterator::Signals;

use super::command::Status;
use super::{stderr, terminal};
use crate::failure::Failure;

/// An event while a lock is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal to pass on to the command.
    Signal(Signal),
    /// A child of this process has ended or stopped.
    Child,
    /// This process was continued after it had been stopped.
    Continued,
    Renewed,
    /// A renewal failed, for this reason.
    NotRenewed(String),
    Lost,
}

/// The signals that ask `run` to end, and that end a wait.
const END_SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
const OTHER_SIGNALS: [Signal; 5] = [
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
    Signal::CHILD,
];

/// A signal that asks for an end so long after the first one kills what is left of the command's group. After that, it
/// ends this process without waiting for the store. `timeout` sends two at once.
pub(super) const SECOND_AFTER: Duration = Duration::from_millis(500);

/// Takes events until none has happened for `limit`, and returns the first signal that asks for an
/// end.
pub(super) fn end_signal(events: &Receiver<Event>, limit: Duration) -> Option<Signal> {
    std::iter::from_fn(|| events.recv_timeout(limit).ok()).find_map(|event| match event {
        Event::Signal(signal) if asks_for_end(signal) => Some(signal),
        _ => None,
    })
}

pub(super) fn asks_for_end(signal: Signal) -> bool {
    END_SIGNALS.contains(&signal)
}

/// Starts a thread that turns signals into events.
///
/// Before `is_running` is set, the first signal that asks for an end cancels `wait`, and a second one ends this
/// process at once. TSTP then stops this process, as it does by default.
pub(super) fn listen(
    events: Sender<Event>,
    wait: CancelToken,
    is_running: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let wanted = END_SIGNALS.into_iter().chain(OTHER_SIGNALS);
    // A signal that the caller ignores (`nohup`, `&` in a script, `trap ''`) stays ignored, here and
    // in the command, which inherits that.
    let handled = wanted.filter(|signal| *signal == Signal::CHILD || !is_ignored(*signal));
    let handled: Vec<_> = handled.map(Signal::as_raw).collect();
    let mut signals =
        Signals::new(&handled).map_err(|error| Failure::system("listen for signals", &error))?;
    let listener = move || {
        // The caller may have blocked the signals. Only this thread unblocks them: the command inherits
        // the mask of another thread, and gets what the caller left.
        let numbers = handled.iter().map(|number| (*number).try_into());
        let _ = numbers
            .collect::<Result<SigSet, _>>()
            .and_then(|all| all.thread_unblock());
        let mut first_end: Option<HostInstant> = None;
        for number in signals.forever() {
            let Some(signal) = Signal::from_named_raw(number) else {
                continue;
            };
            let running = is_running.load(Ordering::SeqCst);
            if asks_for_end(signal) {
                let first = *first_end.get_or_insert_with(|| SystemClock.now());
                if !running && SystemClock.now().saturating_since(first) >= SECOND_AFTER {
                    end_at_once(signal);
                }
            }
            let event = match signal {
                Signal::TSTP if !running => {
                    if !terminal::is_orphan() {
                        let _ = kill_process(getpid(), Signal::STOP);
                    }
                    continue;
                }
                Signal::CHILD => Event::Child,
                Signal::CONT => Event::Continued,
                signal => Event::Signal(signal),
            };
            if events.send(event).is_err() {
                return;
            }
            // After the event, in which the thread that this wakes finds the reason.
            if !running && asks_for_end(signal) {
                wait.cancel();
            }
        }
    };
    let started = std::thread::Builder::new()
        .name("lockkeeper-signals".to_owned())
        .spawn(listener);
    started.map_err(|error| Failure::system("start a thread", &error))?;
    Ok(())
}

/// Starts a thread that cancels `wait` by the first signal that asks for an end. A second one ends this process at once.
/// Returns what tells the first one.
pub(crate) fn end_wait(wait: &CancelToken) -> Result<impl Fn() -> Option<Signal>, Failure> {
    let (sender, events) = unbounded();
    listen(sender, wait.clone(), Arc::default())?;
    Ok(move || end_signal(&events, Duration::ZERO))
}

/// Ends this process while a call of the store may hang.
fn end_at_once(signal: Signal) -> ! {
    stderr::warn(
        "a second signal: ended without waiting for the store, which frees what this process holds after its ttl",
    );
    std::process::exit(Status::Signal(signal.as_raw()).code().into())
}

/// Prevents other processes of this user, such as the command, from reading this process' memory and environment in
/// /proc. Both may contain a password. It prevents core dumps, too. A program that this process starts is not
/// affected.
pub(super) fn hide_memory() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Ends this process by the default action of a signal. Returns its exit status if that is not possible.
pub(crate) fn end_by_signal(signal: Signal) -> u8 {
    // The default action of QUIT is a core dump.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // The kernel does not apply default actions to the first process of a PID namespace.
    if getpid() != Pid::INIT && setrlimit(Resource::Core, none).is_ok() {
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    Status::Signal(signal.as_raw()).code()
}

/// Returns whether this process ignores a signal.
pub(super) fn is_ignored(signal: Signal) -> bool {
    // `self` is right also if /proc shows the process ids of another PID namespace.
    is_in("SigIgn:", "self", signal)
}

/// Returns whether a process is known to handle a signal.
pub(super) fn is_handled(process: Pid, signal: Signal) -> bool {
    is_proc_ours() && is_in("SigCgt:", &process.to_string(), signal)
}

/// Returns whether /proc shows the process ids of this process's own PID namespace.
pub(super) fn is_proc_ours() -> bool {
    let shown = std::fs::read_link("/proc/self").unwrap_or_default();
    shown.to_str() == Some(getpid().to_string().as_str())
}

/// Returns whether a signal is in a mask that Linux shows; see proc_pid_status(5).
fn is_in(mask: &str, process: &str, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

/// Reports what the keeper observes of the lock of `run`, as events and on standard error.
#[derive(Debug)]
pub(super) struct EventForwarder {
    events: Sender<Event>,
    /// The last failure of each lock and of opening: an equal one that follows is not reported again.
    failures: Mutex<BTreeMap<String, String>>,
}

impl EventForwarder {
    pub(super) fn new(events: Sender<Event>) -> Self {
        Self {
            events,
            failures: Mutex::default(),
        }
    }

    /// Returns whether `text` differs from the last failure of `name`.
    fn is_new(&self, name: &str, text: &str) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.insert(name.to_owned(), text.to_owned()).as_deref() != Some(text)
    }
}

impl Observer for EventForwarder {
    fn contended(&self, lock: &ObservedLock<'_>) {
        stderr::info(&format!("{:?} is held by another process", lock.name));
    }

    fn renewed(&self, lock: &ObservedLock<'_>, _token: FencingToken) {
        self.is_new(lock.name.as_str(), "");
        let _ = self.events.send(Event::Renewed);
    }

    fn renewal_unknown(&self, lock: &ObservedLock<'_>, _token: FencingToken, error: &Error) {
        let name = lock.name;
        let text = format!("{name:?} could not be renewed; lockkeeper tries again: {error}");
        if self.is_new(name.as_str(), &text) {
            let _ = self.events.send(Event::NotRenewed(error.to_string()));
            stderr::info(&text);
        }
    }

    fn warning(&self, store: &str, text: &str) {
        stderr::warn(&format!("{store}: {text}"));
    }

    fn open_waits(&self, _store: &str, reason: &Error) {
        let reason = Failure::from(reason.clone()).to_string();
        // No lock has the empty name.
        if self.is_new("", &reason) {
            stderr::info(&format!("{reason}; lockkeeper tries again"));
        }
    }

    fn fallback(&self, from: &str, to: &str, reason: &Error) {
        let reason = Failure::from(reason.clone());
        stderr::warn(&format!(
            "the lock is on {to}, and does not exclude holders on {from}: {reason}"
        ));
    }

    fn lost(&self, _lock: &ObservedLock<'_>, _token: FencingToken) {
        let _ = self.events.send(Event::Lost);
    }
}
