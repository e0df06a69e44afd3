//! From the command line to an exit status.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use lockkeeper::{
    AcquireOptions, CancelToken, Capability, Clock, ErrorKind, LockGuard, LockKeeper, LockName,
    Moment, Released, SystemClock, Wait,
};
use rustix::process::{Pid, Signal, kill_current_process_group};

use super::claim::{self, ClaimWait};
use super::job::{self, CHILD, Job};
use super::plan::Plan;
use super::signals::{Ear, Event, die_of, ends_a_wait, listen, stop_signal, stop_signal_within};
use super::terminal::{self, Terminal};
use super::voice::{self, Voice};
use super::watch::{Ended, LOOK, Watch};
use super::watchdog::{self, WATCHDOG, Watchdog};
use crate::args;
use crate::say;
use crate::settings;
use crate::trouble::{CONFIG, LOST, SYSTEM, Trouble};
use crate::who;

/// As shells say that a command cannot be run.
const NOT_RUN: u8 = 126;
/// What finding out who is in the way may take.
const WHO: Duration = Duration::from_secs(1);

/// What this process is where it was not started by people: becoming the command, or watching it.
pub(crate) fn helper() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    let number = |arg: Option<OsString>| arg?.to_str()?.parse::<i32>().ok();
    if role == CHILD {
        let parent = number(args.next());
        let voice = Voice::of_word(&args.next()?);
        let command: Vec<_> = args.collect();
        let status = job::main(parent, voice, &command);
        voice::finish();
        return Some(status);
    }
    if role == WATCHDOG {
        let claim = args.next()?;
        let group = number(args.next()).and_then(Pid::from_raw);
        return Some(watchdog::main(claim.to_str()?, group));
    }
    None
}

pub(crate) fn main(args: &args::Run) -> ExitCode {
    let voice = Voice::new(args.quiet, args.verbose);
    let end = run(args, voice).unwrap_or_else(|trouble| {
        match trouble.code {
            // Busy, and that is no failure: cron would send a mail.
            0 => voice.tell(&trouble.to_string()),
            _ => voice.warn(&trouble.to_string()),
        }
        End::Code(trouble.code)
    });
    voice::finish();
    match end {
        End::Code(code) => ExitCode::from(code),
        End::Key(signal) => {
            die_of(signal);
            ExitCode::from(status_of(signal))
        }
    }
}

/// How a run ends.
#[derive(Clone, Copy)]
enum End {
    Code(u8),
    /// By a key at the terminal, such as Ctrl-C, which the rest of the job is to know. A shell goes on
    /// after a program that only answers 130.
    Key(Signal),
}

fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn run(args: &args::Run, voice: Voice) -> Result<End, Trouble> {
    let name = LockName::new(args.name.as_str()).map_err(|error| Trouble::usage(&error))?;
    let (tell, events) = channel();
    let wait = CancelToken::new();
    let is_running = Arc::new(AtomicBool::new(false));
    listen(tell.clone(), wait.clone(), Arc::clone(&is_running))?;
    let ear = Ear {
        events: tell,
        voice,
    };
    let opened = settings::open(&args.place, Arc::new(ear));
    if let Some(signal) = stop_signal(&events) {
        return Ok(interrupted(signal, voice));
    }
    let keeper = opened?;
    if !keeper.capabilities().has(Capability::CrossProcess) {
        return Err(Trouble::new(
            CONFIG,
            format!(
                "{}: excludes nobody but its own process; use sqlite: or a server",
                keeper.backend()
            ),
        ));
    }
    let plan = Plan::new(args, &keeper)?;
    let Some(guard) = acquire(args, &keeper, &name, plan, &wait)? else {
        return match stop_signal(&events) {
            Some(signal) => Ok(interrupted(signal, voice)),
            None => Err(conflict(args, &keeper, &name)),
        };
    };
    let granted = SystemClock.now();
    voice.tell(&format!("got {name:?} with the token {}", guard.token()));
    let mut watchdog =
        Watchdog::start(claim::name(&keeper, &name)).map_err(|error| no_process(&error))?;
    let waited = claim::wait(&mut watchdog, plan, &guard, &events, voice).or_else(|_| {
        // Whoever ends all of a service's processes means this one, too.
        match stop_signal_within(LOOK, &events) {
            Some(signal) => Ok(ClaimWait::Signal(signal)),
            None => Err(Trouble::new(
                NOT_RUN,
                "the command cannot be started: somebody has killed its watchdog",
            )),
        }
    })?;
    is_running.store(true, Ordering::SeqCst);
    let ran = match waited {
        ClaimWait::Over => command(args, &guard, watchdog, plan, &events, voice)?,
        ClaimWait::Signal(_) | ClaimWait::Lost => {
            watchdog.dismiss();
            None
        }
    };
    let Some((code, ended)) = ran else {
        release(guard, voice);
        if let ClaimWait::Signal(signal) = waited {
            return Ok(interrupted(signal, voice));
        }
        voice.warn(&format!(
            "the lock {name:?} is lost; its command was not run"
        ));
        return Ok(End::Code(LOST));
    };
    // Nothing is left that a signal could go to.
    is_running.store(false, Ordering::SeqCst);
    let kept = ended.lost || ended.told || {
        let until = granted + args.hold_at_least;
        hold(&guard, until, &events, voice)
    };
    if !kept {
        voice.warn(&format!(
            "the lock {name:?} could not be kept for the rest of --hold-at-least"
        ));
    }
    match release(guard, voice) {
        // Found only now: while the command ran, nobody asked the store.
        Some(Released::AlreadyLost) if plan.ends_the_lost() && !ended.lost && kept => {
            voice.warn(&format!(
                "the lock {name:?} was lost before the command had ended"
            ));
            Ok(End::Code(LOST))
        }
        _ => Ok(ended.key.map_or(End::Code(code), |signal| {
            if ended.passes_on {
                let _ = kill_current_process_group(signal);
            }
            End::Key(signal)
        })),
    }
}

/// `None`: somebody else holds it, or a signal ended the wait.
fn acquire(
    args: &args::Run,
    keeper: &LockKeeper,
    name: &LockName,
    plan: Plan,
    cancel: &CancelToken,
) -> Result<Option<LockGuard>, Trouble> {
    let options = AcquireOptions::new().lease(plan.policy).cancel(cancel);
    let options = match (args.no_wait, args.wait) {
        (true, _) => options.wait(Duration::ZERO),
        (false, Some(Wait::AtMost(wait))) => options.wait(wait),
        (false, Some(Wait::Forever) | None) => options.wait_forever(),
    };
    keeper
        .acquire(name, &options)
        .or_else(|error| match error.kind() {
            ErrorKind::Cancelled => Ok(None),
            ErrorKind::InvalidTtl | ErrorKind::TtlTooShort | ErrorKind::InvalidWait => {
                Err(Trouble::usage(&error))
            }
            _ => Err(error.into()),
        })
}

/// There can be no process of this program, and so none for the command.
fn no_process(error: &io::Error) -> Trouble {
    let way_out = match error.kind() {
        io::ErrorKind::NotFound => "; are /proc and /dev/null there?",
        io::ErrorKind::WouldBlock => "; are there as many as this user may have (ulimit -u)?",
        _ => "",
    };
    Trouble::new(SYSTEM, format!("cannot start a process: {error}{way_out}"))
}

fn interrupted(signal: Signal, voice: Voice) -> End {
    let number = signal.as_raw();
    voice.tell(&format!(
        "signal {number} ended the wait; the command was not run"
    ));
    if terminal::is_key(signal) && Terminal::find().is_some_and(|terminal| terminal.is_ours()) {
        return End::Key(signal);
    }
    End::Code(status_of(signal))
}

/// Not acquired in time; says by whom, where that is known.
fn conflict(args: &args::Run, keeper: &LockKeeper, name: &LockName) -> Trouble {
    let soon = SystemClock.now() + WHO;
    let held = keeper
        .operator()
        .and_then(|operator| operator.held(Some(name), soon).ok()?.pop());
    let by = held.map_or_else(
        || "somebody else".to_owned(),
        |held| who::holder(&held, SystemTime::now()),
    );
    let way_out = match args.wait {
        Some(Wait::AtMost(wait)) if !wait.is_zero() => format!(
            ", and the wait of {} is over; the command was not run: try later, or --wait longer",
            humantime::format_duration(wait)
        ),
        _ => "; the command was not run: try later, or --wait for it".to_owned(),
    };
    Trouble::new(
        args.conflict_exit_code,
        format!("{name:?} is held by {by}{way_out}"),
    )
}

/// Runs the command, and answers the exit status, and how it came to it. `None`: the lock is lost, and
/// the command was not run.
fn command(
    args: &args::Run,
    guard: &LockGuard,
    watchdog: Watchdog,
    plan: Plan,
    events: &Receiver<Event>,
    voice: Voice,
) -> Result<Option<(u8, Ended)>, Trouble> {
    let until = SystemTime::now() + guard.remaining();
    let environment = [
        ("LOCKKEEPER_NAME", guard.name().to_string()),
        ("LOCKKEEPER_TOKEN", guard.token().to_string()),
        (
            "LOCKKEEPER_DEADLINE_UNIX_MS",
            say::unix_millis(until).to_string(),
        ),
    ];
    let job =
        Job::prepare(&args.command, &environment, voice).map_err(|error| no_process(&error))?;
    let watch = Watch::new(&job, watchdog, plan, guard, events, voice);
    let Some(watch) = watch.begin() else {
        return Ok(None);
    };
    let ended = watch.finish();
    voice.tell(&format!("the command ended with {}", ended.status.code()));
    let code = if ended.lost && plan.ends_the_lost() {
        LOST
    } else {
        ended.status.code()
    };
    Ok(Some((code, ended)))
}

/// Keeps the lock until `until`, unless a signal asks for an end. `false`: it was lost before.
fn hold(guard: &LockGuard, until: Moment, events: &Receiver<Event>, voice: Voice) -> bool {
    let left = || until.saturating_since(SystemClock.now());
    if left().is_zero() {
        return true;
    }
    voice.tell(&format!(
        "keeping {:?} for {}",
        guard.name(),
        say::span(left())
    ));
    while !left().is_zero() {
        if !guard.is_held() {
            return false;
        }
        // Command and watchdog are gone: whoever ends now was left behind.
        job::reap_orphans(&[]);
        match events.recv_timeout(left()) {
            Ok(Event::Signal(signal)) if ends_a_wait(signal) => return true,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            // The thread that listens is gone: nothing is heard any more.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left().min(LOOK)),
        }
    }
    true
}

/// What the release found; `None`: the store did not say.
fn release(guard: LockGuard, voice: Voice) -> Option<Released> {
    let name = guard.name().clone();
    match guard.release() {
        Ok(released) => {
            voice.tell(&format!("released {name:?}"));
            Some(released)
        }
        Err(error) => {
            voice.warn(&format!("{error}; the store frees the lock after its ttl"));
            None
        }
    }
}
