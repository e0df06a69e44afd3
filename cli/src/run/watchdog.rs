//! A process that ends the command when `run` cannot: because it was killed, or was stopped for too
//! long.
//!
//! It is told deadlines through its standard input, each good until the next one. Without a word
//! from `run`, the command's group gets TERM and then KILL. When the other end is closed without
//! "over", `run` is dead, and so is its lock, on some stores at once: KILL.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper::{Clock, Moment, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::job::{OWN_NAME, own_program};
use super::plan::Deadline;

/// How it is called; not for people.
pub(super) const WATCHDOG: &str = "__watchdog";
const OVER: &str = "over";
/// It has ended the command, or tried to.
const ACTED: u8 = 3;
/// `poll` does not count the time that the host sleeps.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Watchdog {
    child: Child,
}

impl Watchdog {
    /// Starts one for a process group.
    pub(super) fn start(group: Pid, deadline: Deadline) -> io::Result<Self> {
        let child = Command::new(own_program()?)
            .arg0(OWN_NAME)
            .args([WATCHDOG, &group.to_string()])
            // It keeps nobody's files open, and no folder busy.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .process_group(0)
            .spawn()?;
        let mut watchdog = Self { child };
        watchdog.tell(deadline)?;
        Ok(watchdog)
    }

    /// From now on this deadline counts.
    pub(super) fn tell(&mut self, deadline: Deadline) -> io::Result<()> {
        let Deadline { term, kill } = deadline;
        self.say(&format!("{} {}", term.as_nanos(), kill.as_nanos()))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut();
        let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
        // In one piece.
        stdin.write_all(format!("{line}\n").as_bytes())
    }

    /// Whether somebody has killed it before its time.
    pub(super) fn is_gone(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => status.code() != Some(i32::from(ACTED)),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// The command has ended.
    pub(super) fn dismiss(mut self) {
        // It may have gone by itself.
        let _ = self.say(OVER);
        drop(self.child.stdin.take());
        // Somebody may have stopped it.
        let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
        let _ = self.child.wait();
    }
}

/// What the process does.
pub(super) fn main(group: Pid) -> ExitCode {
    // Whoever signals everybody means the command, and this comes after it.
    let deaf = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let _ = signal_hook::flag::register(signal.as_raw(), Arc::clone(&deaf));
    }
    let mut ears = Ears::default();
    let mut acted = false;
    loop {
        let now = SystemClock.now();
        if now >= ears.deadline.kill {
            signal_group(group, Signal::KILL);
            return ExitCode::from(ACTED);
        }
        if now >= ears.deadline.term && !acted {
            acted = true;
            // What came too late to be heeded must not be.
            ears.is_deaf = true;
            signal_group(group, Signal::TERM);
            signal_group(group, Signal::CONT);
        }
        let next = if acted {
            ears.deadline.kill
        } else {
            ears.deadline.term
        };
        match ears.listen(next.saturating_since(now).min(LONGEST)) {
            Heard::Something => {}
            Heard::Over => return ExitCode::SUCCESS,
            Heard::Nobody => {
                signal_group(group, Signal::KILL);
                return ExitCode::from(ACTED);
            }
        }
    }
}

fn signal_group(group: Pid, signal: Signal) {
    // It may have ended.
    let _ = kill_process_group(group, signal);
}

enum Heard {
    Something,
    /// The command has ended.
    Over,
    /// The other end is gone.
    Nobody,
}

struct Ears {
    deadline: Deadline,
    is_deaf: bool,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Default for Ears {
    fn default() -> Self {
        Self {
            deadline: Deadline {
                term: Moment::NEVER,
                kill: Moment::NEVER,
            },
            is_deaf: false,
            rest: Vec::new(),
        }
    }
}

impl Ears {
    fn listen(&mut self, limit: Duration) -> Heard {
        let stdin = rustix::stdio::stdin();
        let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
        // Up, so that it does not run in circles until the deadline has come.
        let limit = limit.saturating_add(Duration::from_millis(1));
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(_) => return Heard::Something,
            Ok(_) => {}
        }
        let mut bytes = [0; 4096];
        match rustix::io::read(stdin, &mut bytes) {
            Ok(0) => return Heard::Nobody,
            Ok(count) => self.rest.extend(bytes.iter().take(count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return Heard::Nobody,
        }
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if line.trim() == OVER {
                return Heard::Over;
            }
            if let Some(deadline) = parse(line.trim()).filter(|_| !self.is_deaf) {
                self.deadline = deadline;
            }
        }
        Heard::Something
    }
}

fn parse(line: &str) -> Option<Deadline> {
    let (term, kill) = line.split_once(' ')?;
    Some(Deadline {
        term: Moment::from_nanos(term.parse().ok()?),
        kill: Moment::from_nanos(kill.parse().ok()?),
    })
}
