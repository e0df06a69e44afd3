//! The signals of a run, and everything else that happens to it, in one line of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use lockkeeper::{CancelToken, Error, FencingToken, LockName, Observer};
use nix::sys::signal::SigSet;
#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use signal_hook::iterator::Signals;

use super::job::is_proc_ours;
use super::terminal;
use super::voice::Voice;
use crate::trouble::Trouble;

/// What happens while a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// To be passed on to the command.
    Signal(Signal),
    /// A child of this process has changed its state.
    Child,
    /// This process was continued after it had been stopped.
    Continued,
    Renewed,
    Lost,
}

/// Those that end a wait.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
const OTHERS: [Signal; 5] = [
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
    Signal::CHILD,
];

/// Whether a signal asks for an end, of what has happened so far.
pub(super) fn stop_signal(events: &Receiver<Event>) -> Option<Signal> {
    events.try_iter().find_map(stops)
}

/// The same, until nothing has happened for `limit`.
pub(super) fn stop_signal_within(limit: Duration, events: &Receiver<Event>) -> Option<Signal> {
    std::iter::from_fn(|| events.recv_timeout(limit).ok()).find_map(stops)
}

fn stops(event: Event) -> Option<Signal> {
    match event {
        Event::Signal(signal) if ends_a_wait(signal) => Some(signal),
        _ => None,
    }
}

pub(super) fn ends_a_wait(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Listens from now on. Until `is_running`, a signal that ends a wait cancels `wait`, and a stop
/// stops this process as it would without anybody listening.
pub(super) fn listen(
    events: Sender<Event>,
    wait: CancelToken,
    is_running: Arc<AtomicBool>,
) -> Result<(), Trouble> {
    let wanted = ENDING.into_iter().chain(OTHERS);
    // `nohup`, a script's `&`, and a `trap ''` mean that these are to do nothing to this nor to the
    // command, which inherits that.
    let heard = wanted.filter(|signal| *signal == Signal::CHILD || !is_ignored(*signal));
    let heard: Vec<_> = heard.map(Signal::as_raw).collect();
    let mut signals =
        Signals::new(&heard).map_err(|error| Trouble::system("listen for signals", &error))?;
    let listener = move || {
        // Whoever started this may have blocked them. The other threads stay as they are, and so does
        // the command, which one of them starts.
        let numbers = heard.iter().map(|number| (*number).try_into());
        let _ = numbers
            .collect::<Result<SigSet, _>>()
            .and_then(|all| all.thread_unblock());
        for number in signals.forever() {
            let Some(signal) = Signal::from_named_raw(number) else {
                continue;
            };
            let running = is_running.load(Ordering::SeqCst);
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
            // Who is woken looks for the reason.
            if !running && ends_a_wait(signal) {
                wait.cancel();
            }
        }
    };
    let started = std::thread::Builder::new()
        .name("lockkeeper-signals".to_owned())
        .spawn(listener);
    started.map_err(|error| Trouble::system("start a thread", &error))?;
    Ok(())
}

/// Ends this process as if nobody listened. Comes back where that cannot be.
pub(super) fn die_of(signal: Signal) {
    // The memory that a QUIT would have the system write to a file, or hand to a program, may hold a
    // password.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // The first process of a PID namespace does not die of them.
    if getpid() != Pid::INIT && setrlimit(Resource::Core, none).is_ok() {
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
}

/// Whether a signal is ignored by this process.
pub(super) fn is_ignored(signal: Signal) -> bool {
    // By that name also where /proc numbers processes as another namespace does.
    is_in("SigIgn:", "self", signal)
}

/// Whether a process is known to handle a signal.
pub(super) fn is_handled(process: Pid, signal: Signal) -> bool {
    is_proc_ours() && is_in("SigCgt:", &process.to_string(), signal)
}

/// proc_pid_status(5)
#[cfg(target_os = "linux")]
fn is_in(mask: &str, process: &str, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

#[cfg(not(target_os = "linux"))]
fn is_in(_mask: &str, _process: &str, _signal: Signal) -> bool {
    false
}

/// Passes on what the keeper sees of its one lock.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) events: Sender<Event>,
    pub(super) voice: Voice,
}

impl Observer for Ear {
    fn contended(&self, name: &LockName) {
        self.voice
            .tell(&format!("{name:?} is held by somebody else"));
    }

    fn renewed(&self, _name: &LockName, _token: FencingToken) {
        let _ = self.events.send(Event::Renewed);
    }

    fn renewal_unknown(&self, name: &LockName, _token: FencingToken, error: &Error) {
        self.voice.tell(&format!(
            "{name:?} could not be renewed, which is tried again: {error}"
        ));
    }

    fn warning(&self, store: &str, text: &str) {
        self.voice.warn(&format!("{store}: {text}"));
    }

    fn fallback(&self, from: &str, to: &str, reason: &Error) {
        self.voice.warn(&format!(
            "the lock is on {to}, and excludes nobody who locks on {from}: {reason}"
        ));
    }

    fn lost(&self, _name: &LockName, _token: FencingToken) {
        let _ = self.events.send(Event::Lost);
    }
}
