//! From the command line to an exit status.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use lockkeeper::{
    AcquireOptions, CancelToken, Capability, Clock, ErrorKind, HostInstant, LockGuard, LockKeeper,
    LockName, Released, SystemClock, Wait,
};
use rustix::process::{Pid, Signal, kill_current_process_group};

use super::claim;
use super::claim_wait::{self, ClaimWait};
use super::command::{self, CHILD, CommandProcess};
use super::plan::Plan;
use super::poll::POLL_INTERVAL;
use super::signals::{
    Event, EventForwarder, asks_for_end, end_by_signal, end_signal, end_signal_within, listen,
};
use super::stderr::{self, StderrWriter};
use super::supervisor::{Ended, Supervisor};
use super::terminal::{self, Terminal};
use super::watchdog::{self, WATCHDOG, Watchdog};
use crate::args;
use crate::failure::{CONFIG, Failure, LOST, SYSTEM};
use crate::output;
use crate::settings;
use crate::who;

/// The exit status of shells for a command that cannot be run.
const NOT_RUN: u8 = 126;
/// How long the question for the holder may take.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs this process as a helper of another `run`: as the process that becomes the command, or as the
/// watchdog. Returns `None` if this process is no helper.
pub(crate) fn helper() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    let number = |arg: Option<OsString>| arg?.to_str()?.parse::<i32>().ok();
    if role == CHILD {
        let parent = number(args.next());
        let stderr = StderrWriter::from_arg(&args.next()?);
        let command: Vec<_> = args.collect();
        let status = command::main(parent, stderr, &command);
        stderr::flush();
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
    let stderr = StderrWriter::new(args.quiet, args.verbose);
    let end = run(args, stderr).unwrap_or_else(|failure| {
        match failure.code {
            // With --conflict-exit-code 0 a busy lock is no failure, and cron must not send a mail.
            0 => stderr.info(&failure.to_string()),
            _ => stderr.warn(&failure.to_string()),
        }
        End::Code(failure.code)
    });
    stderr::flush();
    match end {
        End::Code(code) => ExitCode::from(code),
        End::Key(signal) => {
            end_by_signal(signal);
            ExitCode::from(status_of(signal))
        }
    }
}

/// How `run` ends.
#[derive(Clone, Copy)]
enum End {
    Code(u8),
    /// By the signal of a key at the terminal, such as Ctrl-C. The rest of the job has to see a death
    /// by the signal: a shell script goes on after a program that exits with 130.
    Key(Signal),
}

fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn run(args: &args::Run, stderr: StderrWriter) -> Result<End, Failure> {
    let name = LockName::new(args.name.as_str()).map_err(|error| Failure::usage(&error))?;
    let (sender, events) = channel();
    let wait = CancelToken::new();
    let is_running = Arc::new(AtomicBool::new(false));
    listen(sender.clone(), wait.clone(), Arc::clone(&is_running))?;
    let forwarder = EventForwarder {
        events: sender,
        stderr,
    };
    let opened = settings::open(&args.store, Arc::new(forwarder));
    if let Some(signal) = end_signal(&events) {
        return Ok(interrupted(signal, stderr));
    }
    let keeper = opened?;
    if !keeper.capabilities().has(Capability::CrossProcess) {
        return Err(Failure::new(
            CONFIG,
            format!(
                "{}: excludes only the threads of its own process; use sqlite: or a server",
                keeper.backend()
            ),
        ));
    }
    let plan = Plan::new(args, &keeper)?;
    let Some(guard) = acquire(args, &keeper, &name, plan, &wait)? else {
        return match end_signal(&events) {
            Some(signal) => Ok(interrupted(signal, stderr)),
            None => Err(conflict(args, &keeper, &name)),
        };
    };
    let granted = SystemClock.now();
    stderr.info(&format!("got {name:?} with the token {}", guard.token()));
    let mut watchdog =
        Watchdog::start(claim::name(&keeper, &name)).map_err(|error| no_process(&error))?;
    let waited = claim_wait::wait(&mut watchdog, plan, &guard, &events, stderr).or_else(|_| {
        // A signal to all processes of a service also ends the watchdog; this process gets it, too.
        match end_signal_within(POLL_INTERVAL, &events) {
            Some(signal) => Ok(ClaimWait::Signal(signal)),
            None => Err(Failure::new(
                NOT_RUN,
                "the command cannot be started: its watchdog was killed",
            )),
        }
    })?;
    is_running.store(true, Ordering::SeqCst);
    let ran = match waited {
        ClaimWait::Over => command(args, &guard, watchdog, plan, &events, stderr)?,
        ClaimWait::Signal(_) | ClaimWait::Lost => {
            watchdog.dismiss();
            None
        }
    };
    let Some((code, ended)) = ran else {
        release(guard, stderr);
        if let ClaimWait::Signal(signal) = waited {
            return Ok(interrupted(signal, stderr));
        }
        stderr.warn(&format!(
            "the lock {name:?} is lost; its command was not run"
        ));
        return Ok(End::Code(LOST));
    };
    // The command has ended, so signals are for this process again.
    is_running.store(false, Ordering::SeqCst);
    let kept = ended.lost || ended.was_asked_to_end || {
        let until = granted + args.hold_at_least;
        hold(&guard, until, &events, stderr)
    };
    if !kept {
        stderr.warn(&format!(
            "the lock {name:?} could not be kept for the rest of --hold-at-least"
        ));
    }
    match release(guard, stderr) {
        // Only the release finds the loss: no renewal was due while the command ran.
        Some(Released::AlreadyLost) if plan.ends_on_loss() && !ended.lost && kept => {
            stderr.warn(&format!(
                "the lock {name:?} was lost before the command had ended"
            ));
            Ok(End::Code(LOST))
        }
        _ => Ok(ended.key.map_or(End::Code(code), |signal| {
            if ended.passes_key_on {
                let _ = kill_current_process_group(signal);
            }
            End::Key(signal)
        })),
    }
}

/// Acquires the lock. Returns `None` if another holder has it, or if a signal ended the wait.
fn acquire(
    args: &args::Run,
    keeper: &LockKeeper,
    name: &LockName,
    plan: Plan,
    cancel: &CancelToken,
) -> Result<Option<LockGuard>, Failure> {
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
                Err(Failure::usage(&error))
            }
            _ => Err(error.into()),
        })
}

/// Returns the error for a process that cannot be started.
fn no_process(error: &io::Error) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; are /proc and /dev/null there?",
        io::ErrorKind::WouldBlock => "; are there as many as this user may have (ulimit -u)?",
        _ => "",
    };
    Failure::new(SYSTEM, format!("cannot start a process: {error}{advice}"))
}

/// Reports that a signal ended the wait.
fn interrupted(signal: Signal, stderr: StderrWriter) -> End {
    let number = signal.as_raw();
    stderr.info(&format!(
        "signal {number} ended the wait; the command was not run"
    ));
    if terminal::is_key(signal) && Terminal::find().is_some_and(|terminal| terminal.is_ours()) {
        return End::Key(signal);
    }
    End::Code(status_of(signal))
}

/// Returns the error for a lock that was not acquired in time. It names the holder, if the store knows.
fn conflict(args: &args::Run, keeper: &LockKeeper, name: &LockName) -> Failure {
    let deadline = SystemClock.now() + HOLDER_TIMEOUT;
    let held = keeper
        .admin()
        .and_then(|admin| admin.held(Some(name), deadline).ok()?.pop());
    let by = held.map_or_else(
        || "another process".to_owned(),
        |held| who::holder(&held, SystemTime::now()),
    );
    let advice = match args.wait {
        Some(Wait::AtMost(wait)) if !wait.is_zero() => format!(
            ", and the wait of {} is over; the command was not run: try later, or --wait longer",
            humantime::format_duration(wait)
        ),
        _ => "; the command was not run: try later, or --wait for it".to_owned(),
    };
    Failure::new(
        args.conflict_exit_code,
        format!("{name:?} is held by {by}{advice}"),
    )
}

/// Runs the command, and returns the exit status and how the command ended. Returns `None` if the lock
/// is lost and the command was not run.
fn command(
    args: &args::Run,
    guard: &LockGuard,
    watchdog: Watchdog,
    plan: Plan,
    events: &Receiver<Event>,
    stderr: StderrWriter,
) -> Result<Option<(u8, Ended)>, Failure> {
    let until = SystemTime::now() + guard.remaining();
    let environment = [
        ("LOCKKEEPER_NAME", guard.name().to_string()),
        ("LOCKKEEPER_TOKEN", guard.token().to_string()),
        (
            "LOCKKEEPER_DEADLINE_UNIX_MS",
            output::unix_millis(until).to_string(),
        ),
    ];
    let process = CommandProcess::spawn_stopped(&args.command, &environment, stderr)
        .map_err(|error| no_process(&error))?;
    let supervisor = Supervisor::new(&process, watchdog, plan, guard, events, stderr);
    let Some(supervisor) = supervisor.start() else {
        return Ok(None);
    };
    let ended = supervisor.wait();
    stderr.info(&format!("the command ended with {}", ended.status.code()));
    let code = if ended.lost && plan.ends_on_loss() {
        LOST
    } else {
        ended.status.code()
    };
    Ok(Some((code, ended)))
}

/// Keeps the lock until `until`, or until a signal asks for an end. Returns whether the lock was held
/// all the time.
fn hold(
    guard: &LockGuard,
    until: HostInstant,
    events: &Receiver<Event>,
    stderr: StderrWriter,
) -> bool {
    let left = || until.saturating_since(SystemClock.now());
    if left().is_zero() {
        return true;
    }
    stderr.info(&format!(
        "keeping {:?} for {}",
        guard.name(),
        output::format_span(left())
    ));
    while !left().is_zero() {
        if !guard.is_held() {
            return false;
        }
        // The command and the watchdog have ended, so every child that ends now is an orphan.
        command::reap_orphans(&[]);
        // An error is a time-out: the keeper's observer is a sender as long as the lock is held.
        if let Ok(Event::Signal(signal)) = events.recv_timeout(left())
            && asks_for_end(signal)
        {
            return true;
        }
    }
    true
}

/// Releases the lock. Returns what the release found, or `None` if the store did not reply.
fn release(guard: LockGuard, stderr: StderrWriter) -> Option<Released> {
    let name = guard.name().clone();
    match guard.release() {
        Ok(released) => {
            stderr.info(&format!("released {name:?}"));
            Some(released)
        }
        Err(error) => {
            stderr.warn(&format!("{error}; the store frees the lock after its ttl"));
            None
        }
    }
}
