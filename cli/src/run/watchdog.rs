//! The watchdog: a process that ends the command if `run` is killed, or is stopped for too long.
//!
//! `run` starts the watchdog before the command. The watchdog takes the claims on the names, and
//! writes `ready` when it holds all of them. Then `run` sends the command's process group to it.
//!
//! `run` sends deadlines to the watchdog's standard input; each one replaces the one before. When
//! a deadline passes, the command's group gets TERM, then KILL. If standard input ends without
//! `over`, `run` is dead, and the group gets KILL at once.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use rustix::process::{Pid, Signal, kill_process};

use super::claim::Claims;
use super::command::{OWN_NAME, is_group_gone, signal_group};
use super::plan::Deadlines;
use super::poll::{Timer, is_readable};
use crate::program::own_program;

/// The hidden argument that makes this program the watchdog.
pub(super) const WATCHDOG: &str = "__watchdog";
/// The argument in place of the command's group, if the command does not run yet.
const NO_GROUP: &str = "-";
const OVER: &str = "over";
const GROUP: &str = "group ";
const READY: &[u8] = b"ready\n";
/// The last line of the watchdog: it sends the command TERM now.
const ENDING: &[u8] = b"ending\n";
/// The exit status of a watchdog that has ended the command, or tried to.
const ACTED: u8 = 3;
/// How often the watchdog polls for the end of another claim, or of a process group.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The number of polls for the end of a group that was killed: some seconds in all. It limits
/// polls, not time, since time passes while the host is suspended or too busy.
const MAX_POLLS: u32 = 1_500;
/// After this number of polls, the watchdog also checks whether only zombies are left, which takes
/// longer.
const ZOMBIE_CHECK: u32 = 8;

/// The watchdog, as `run` sees it.
#[derive(Debug)]
pub(super) struct Watchdog {
    child: Child,
    /// The names of its claims.
    pub(super) claims: Vec<String>,
}

impl Watchdog {
    /// Starts a watchdog that has no deadline yet. `group` is the command, if it runs already.
    pub(super) fn start(claims: Vec<String>, group: Option<Pid>) -> io::Result<Self> {
        let group = group.map_or_else(|| NO_GROUP.to_owned(), |group| group.to_string());
        let child = Command::new(own_program()?)
            .arg0(OWN_NAME)
            .args([WATCHDOG, &group])
            .args(&claims)
            // The watchdog must not keep the caller's files open, nor its file system busy.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .process_group(0)
            .spawn()?;
        Ok(Self { child, claims })
    }

    /// Waits at most `limit`, and returns whether the watchdog holds its claims.
    pub(super) fn wait_for_claims(&mut self, limit: Duration) -> io::Result<bool> {
        let stdout = self.child.stdout.as_mut();
        let stdout = stdout.ok_or(io::ErrorKind::BrokenPipe)?;
        if !is_readable(stdout, limit) {
            return Ok(false);
        }
        match stdout.read(&mut [0; READY.len()])? {
            0 => Err(io::Error::other("the watchdog was killed")),
            _ => Ok(true),
        }
    }

    /// Replaces the deadlines of the watchdog.
    pub(super) fn send_deadlines(&mut self, deadlines: Deadlines) -> io::Result<()> {
        let Deadlines { term, kill, claim } = deadlines;
        let [term, kill, claim] = [term, kill, claim].map(HostInstant::as_nanos);
        self.send(&format!("{term} {kill} {claim}"))
    }

    /// Makes the watchdog end this group when its deadlines pass.
    pub(super) fn watch_group(&mut self, group: Pid, deadlines: Deadlines) -> io::Result<()> {
        self.send_deadlines(deadlines)?;
        self.send(&format!("{GROUP}{group}"))
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut();
        let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
        // The watchdog relies on one write for each line.
        stdin.write_all(format!("{line}\n").as_bytes())?;
        // The watchdog may have been stopped.
        let _ = kill_process(self.pid(), Signal::CONT);
        Ok(())
    }

    /// Returns whether the watchdog has begun to end the command since the last call.
    pub(super) fn is_ending(&mut self) -> bool {
        let mut bytes = [0; READY.len() + ENDING.len()];
        let count = match self.child.stdout.as_mut() {
            Some(stdout) if is_readable(stdout, Duration::ZERO) => stdout.read(&mut bytes),
            _ => Ok(0),
        };
        let read = count.ok().and_then(|count| bytes.get(..count));
        read.is_some_and(|read| read.ends_with(ENDING))
    }

    /// Returns whether the watchdog has ended without having ended the command.
    pub(super) fn was_killed(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => status.code() != Some(i32::from(ACTED)),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Ends the watchdog after the command has ended.
    pub(super) fn dismiss(&mut self) {
        // The watchdog may have ended by itself.
        let _ = self.send(OVER);
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the watchdog's process.
pub(super) fn main(group: Option<Pid>, claims: Vec<String>) -> ExitCode {
    // A signal to all processes of a service is meant for the command, and the watchdog must end after the
    // command.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let _ = signal_hook::flag::register(signal.as_raw(), Arc::clone(&ignored));
    }
    // The end of this process tells `run` that there is no watchdog.
    let stdin = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let (Ok(timer), Ok(stdin)) = (Timer::new(), stdin) else {
        return ExitCode::FAILURE;
    };
    let mut claims = Claims::new(claims);
    let mut reader = CommandReader {
        deadlines: Deadlines::NEVER,
        group,
        acted: false,
        lines: BufReader::new(stdin),
    };
    loop {
        let now = SystemClock.now();
        // `end` keeps the claims until the group is gone, although their own deadline may be over.
        if reader.group.is_some() && now >= reader.deadlines.kill {
            return end(reader.group, claims);
        }
        if now >= reader.deadlines.claim {
            claims.give_up();
        } else if !claims.are_taken() && claims.take() {
            // If `run` is dead, the code below notices.
            let _ = io::stdout().write_all(READY);
        }
        if let Some(group) = reader.group
            && now >= reader.deadlines.term
            && !reader.acted
        {
            if !is_group_gone(group, true) {
                // `run` must read this before the command can end by the signal.
                let _ = io::stdout().write_all(ENDING);
            }
            reader.acted = true;
            signal_group(group, Signal::TERM);
            signal_group(group, Signal::CONT);
        }
        let group_wakes = match reader.group {
            None => HostInstant::NEVER,
            Some(_) if reader.acted => reader.deadlines.kill,
            Some(_) => reader.deadlines.term,
        };
        let claims_wake = match claims.are_taken() {
            true => reader.deadlines.claim,
            false if now < reader.deadlines.claim => now + POLL_INTERVAL,
            false => HostInstant::NEVER,
        };
        let mut files = vec![reader.lines.get_ref().as_fd()];
        files.extend(claims.connections());
        let waited = timer.wait_until(group_wakes.min(claims_wake), &files);
        if waited.is_err() {
            // A watchdog that cannot wait ends the command, which must not run without a watchdog.
            return end(reader.group, claims);
        }
        claims.accept();
        match reader.read() {
            Input::Applied => {}
            Input::Over => return ExitCode::SUCCESS,
            Input::Closed => return end(reader.group, claims),
        }
    }
}

/// Kills the group, and releases the claims when the group is gone.
fn end(group: Option<Pid>, mut claims: Claims) -> ExitCode {
    if let Some(group) = group {
        signal_group(group, Signal::KILL);
        for count in 0..MAX_POLLS {
            if is_group_gone(group, count % ZOMBIE_CHECK == ZOMBIE_CHECK - 1) {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
            claims.accept();
        }
    }
    ExitCode::from(ACTED)
}

/// What standard input has brought.
enum Input {
    /// Lines that were applied, or none.
    Applied,
    /// The command has ended.
    Over,
    /// `run` is dead.
    Closed,
}

/// Reads what `run` sends.
struct CommandReader {
    deadlines: Deadlines,
    group: Option<Pid>,
    /// Whether TERM was sent to the command. Deadlines that arrive later are ignored.
    acted: bool,
    /// Standard input.
    lines: BufReader<File>,
}

impl CommandReader {
    fn read(&mut self) -> Input {
        // `run` sends each line in one write, so a line that has begun is complete.
        while !self.lines.buffer().is_empty() || is_readable(self.lines.get_ref(), Duration::ZERO) {
            let mut line = String::new();
            if !self.lines.read_line(&mut line).is_ok_and(|count| count > 0) {
                return Input::Closed;
            }
            if line.trim() == OVER {
                return Input::Over;
            }
            if let Some(group) = line.trim().strip_prefix(GROUP) {
                self.group = group.parse().ok().and_then(Pid::from_raw);
            }
            if let Some(deadlines) = parse(line.trim()).filter(|_| !self.acted) {
                self.deadlines = deadlines;
            }
        }
        Input::Applied
    }
}

fn parse(line: &str) -> Option<Deadlines> {
    let mut numbers = line.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten().map(HostInstant::from_nanos);
    Some(Deadlines {
        term: next()?,
        kill: next()?,
        claim: next()?,
    })
}
