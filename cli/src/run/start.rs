//! From the command line to an exit status.
//!
//! The child becomes the command. A hidden re-execution of this program sets its group and its death signal, stops,
//! and executes the command when it is continued. So no unsafe code runs between fork and exec.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crossbeam_channel::unbounded;
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{CancelToken, Capability, ErrorKind, LockKeeper, Released, Wait};
use rustix::process::{Pid, Signal, kill_current_process_group};

use super::command::{self, CHILD, CommandProcess, NOT_RUN, Status};
use super::guard::{Guard, Request};
use super::held::{ClaimWait, HeldLock};
use super::limits::Limits;
use super::opening::{self, Opened};
use super::plan::Plan;
use super::poll::POLL_INTERVAL;
use super::signals::{end_by_signal, end_signal, hide_memory, listen};
use super::status_file::{self, Origin};
use super::stderr::{self, Level};
use super::supervisor::{Ended, Supervisor};
use super::terminal::{self, Terminal};
use super::watchdog::{self, WATCHDOG, Watchdog};
use crate::args;
use crate::failure::{CONFIG, Failure, LOST, SYSTEM};
use crate::output;
use crate::settings;

/// Runs this process as a helper of another `run`: as the process that becomes the command, or as the
/// watchdog. Returns `None` if this process is no helper.
pub(crate) fn helper() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    let number = |arg: Option<OsString>| arg?.to_str()?.parse::<i32>().ok();
    if role == CHILD {
        let parent = number(args.next());
        if args.next()? == command::QUIET {
            stderr::set_level(Level::Quiet);
        }
        let status_file = args.next()?;
        let command: Vec<_> = args.collect();
        let status = command::main(parent, &status_file, &command);
        stderr::flush();
        return Some(status);
    }
    if role == WATCHDOG {
        let group = number(args.next()).and_then(Pid::from_raw);
        let claims = args.map(|claim| claim.into_string().ok());
        return Some(watchdog::main(group, claims.collect::<Option<_>>()?));
    }
    None
}

pub(crate) fn main(args: &args::Run) -> ExitCode {
    stderr::set_level(match (args.quiet, args.verbose) {
        (true, _) => Level::Quiet,
        (false, true) => Level::Verbose,
        (false, false) => Level::Normal,
    });
    hide_memory();
    let cleared = args
        .status_file
        .as_deref()
        .map_or(Ok(()), status_file::clear);
    let end = cleared.and_then(|()| run(args)).unwrap_or_else(|failure| {
        match failure.code {
            // With --conflict-exit-code 0 a busy lock is no failure, and cron must not send a mail.
            0 => stderr::info(&failure.to_string()),
            _ => stderr::warn(&failure.to_string()),
        }
        End::ours(failure.code)
    });
    if let Some(file) = &args.status_file {
        status_file::write(file.as_os_str(), end.origin, end.code);
    }
    stderr::flush();
    if let Some(signal) = end.key {
        end_by_signal(signal);
    }
    ExitCode::from(end.code)
}

/// How `run` ends.
#[derive(Clone, Copy)]
struct End {
    code: u8,
    origin: Origin,
    /// The signal of a key at the terminal, such as Ctrl-C. The rest of the job has to see a death by the signal: a
    /// shell script goes on after a program that exits with 130.
    key: Option<Signal>,
}

impl End {
    /// Ends by a status of lockkeeper itself.
    fn ours(code: u8) -> Self {
        Self {
            code,
            origin: Origin::Lockkeeper,
            key: None,
        }
    }
}

fn run(args: &args::Run) -> Result<End, Failure> {
    let request = Request::new(args)?;
    args.label.apply()?;
    let (sender, events) = unbounded();
    let wait = CancelToken::new();
    let is_running = Arc::new(AtomicBool::new(false));
    listen(sender.clone(), wait.clone(), Arc::clone(&is_running))?;
    let began = SystemClock.now();
    let keeper = match opening::open(args, &wait, sender, &events)? {
        Opened::Store(keeper) => keeper,
        Opened::Signal(signal) => return Ok(interrupted(signal)),
    };
    if !keeper.capabilities().has(Capability::CrossProcess) {
        let store = keeper.backend();
        let text = "excludes only the threads of its own process; use sqlite: or a server";
        return Err(Failure::new(CONFIG, format!("{store}: {text}")));
    }
    let plan = Plan::new(args, &keeper)?;
    let Some(guard) = acquire(args, &keeper, &request, plan, began, &wait)? else {
        return match end_signal(&events, Duration::ZERO) {
            Some(signal) => Ok(interrupted(signal)),
            None => Err(conflict(args, &keeper, &request)),
        };
    };
    let (shown, claims) = (request.to_string(), request.claims(&keeper, &guard));
    stderr::info(&format!("got {}", request.granted(&guard)));
    let held = HeldLock {
        request,
        guard,
        plan,
        granted: SystemClock.now(),
        events,
    };
    let mut watchdog = Watchdog::start(claims, None).map_err(|error| no_process(&error))?;
    let mut waited = held.wait_for_claims(&mut watchdog).or_else(|_| {
        // A signal to all processes of a service also ends the watchdog; this process gets it, too.
        let signal = end_signal(&held.events, POLL_INTERVAL).map(ClaimWait::Signal);
        let text = "the command cannot be started: its watchdog was killed";
        signal.ok_or_else(|| Failure::new(NOT_RUN, text))
    })?;
    let ended = match waited {
        ClaimWait::Over => {
            is_running.store(true, Ordering::SeqCst);
            let ended = command(args, watchdog, &held);
            // The command has ended, so signals are for this process again.
            is_running.store(false, Ordering::SeqCst);
            match ended {
                Ok(ended) => ended,
                Err(failure) => {
                    // Such a signal also ends the process that was to become the command.
                    let signal = end_signal(&held.events, POLL_INTERVAL);
                    waited = ClaimWait::Signal(signal.ok_or(failure)?);
                    None
                }
            }
        }
        ClaimWait::Signal(_) | ClaimWait::Lost => {
            watchdog.dismiss();
            None
        }
    };
    let Some(ended) = ended else {
        held.release();
        if let ClaimWait::Signal(signal) = waited {
            return Ok(interrupted(signal));
        }
        stderr::warn(&format!("{shown} is lost; its command was not run"));
        return Ok(End::ours(LOST));
    };
    let kept =
        ended.lost || ended.was_asked_to_end || held.keep_until(held.granted + args.hold_at_least);
    if !kept {
        let text = "could not be kept for the rest of --hold-at-least";
        stderr::warn(&format!("{shown} {text}"));
    }
    match held.release() {
        // Only the release finds the loss: no renewal was due while the command ran.
        Some(Released::AlreadyLost) if plan.ends_on_loss() && !ended.lost && kept => {
            stderr::warn(&format!("{shown} was lost before the command had ended"));
            Ok(End::ours(LOST))
        }
        _ => {
            if let Some(signal) = ended.key.filter(|_| ended.passes_key_on) {
                // This process gets it, too, and not as a second signal after another one.
                is_running.store(true, Ordering::SeqCst);
                let _ = kill_current_process_group(signal);
            }
            Ok(End {
                code: ended.code,
                origin: ended.origin,
                key: ended.key,
            })
        }
    }
}

/// Acquires the lock. The wait began at `began`. Returns `None` if other holders have it, or if a signal ended the
/// wait.
fn acquire(
    args: &args::Run,
    keeper: &LockKeeper,
    request: &Request,
    plan: Plan,
    began: HostInstant,
    cancel: &CancelToken,
) -> Result<Option<Guard>, Failure> {
    let options = args.wait.acquisition(began);
    let options = options.lease(plan.policy).cancel(cancel);
    request
        .acquire(keeper, &options)
        .or_else(|error| match error.kind() {
            ErrorKind::Cancelled => Ok(None),
            _ => Err(Failure::acquisition(error)),
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
fn interrupted(signal: Signal) -> End {
    let number = signal.as_raw();
    stderr::info(&format!(
        "signal {number} ended the wait; the command was not run"
    ));
    let is_key =
        terminal::is_key(signal) && Terminal::find().is_some_and(|terminal| terminal.is_ours());
    End {
        key: is_key.then_some(signal),
        ..End::ours(Status::Signal(number).code())
    }
}

/// Returns the error for a lock that was not acquired in time. It names the holders, if the store knows them.
fn conflict(args: &args::Run, keeper: &LockKeeper, request: &Request) -> Failure {
    let advice = match args.wait.wait {
        Some(Wait::AtMost(wait)) if !wait.is_zero() => format!(
            ", and the wait of {} is over; the command was not run: try later, or --wait longer",
            humantime::format_duration(wait)
        ),
        _ => "; the command was not run: try later, or --wait for it".to_owned(),
    };
    let text = format!("{}{advice}", request.holders(keeper));
    Failure::new(args.conflict_exit_code, text)
}

/// Runs the command. Returns `None` if the lock is lost and the command was not run.
fn command(
    args: &args::Run,
    watchdog: Watchdog,
    held: &HeldLock,
) -> Result<Option<Ended>, Failure> {
    let guard = &held.guard;
    let until = output::unix_millis(SystemTime::now() + guard.remaining());
    let mut environment = match args.pass_url {
        true => settings::environment(&args.store)?,
        false => Vec::new(),
    };
    let deadline = ("LOCKKEEPER_DEADLINE_UNIX_MS", until.to_string());
    for (name, value) in held.request.variables(guard).into_iter().chain([deadline]) {
        environment.push((name.into(), value.into()));
    }
    let status_file = args.status_file.as_deref();
    let process = CommandProcess::spawn_stopped(&args.command(), environment, status_file)
        .map_err(|error| no_process(&error))?;
    let limits = Limits::new(args);
    Ok(Supervisor::start(&process, watchdog, held, limits).map(Supervisor::wait))
}
