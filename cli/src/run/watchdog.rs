//! A process that ends the command when `run` cannot: because it was killed, or was stopped for too
//! long.
//!
//! It is told deadlines through its standard input, each good until the next one. Without a word
//! from `run`, the command's group gets TERM and then KILL. When the other end is closed without
//! "over", `run` is dead: KILL.
//!
//! It starts before the command, takes the claim on the name, and says that it is ready when it has
//! it. Then it is told the command's group.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper::{Clock, Moment, SystemClock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::claim::{Claim, Obstacle};
use super::job::{self, OWN_NAME, own_program};
use super::plan::Deadline;
use super::poll::{Timer, is_readable};

/// How it is called; not for people.
pub(super) const WATCHDOG: &str = "__watchdog";
const OVER: &str = "over";
const GROUP: &str = "group ";
const READY: &[u8] = b"ready\n";
/// The last that it says: it sends the command TERM now.
const ENDING: &[u8] = b"ending\n";
/// It has ended the command, or tried to.
const ACTED: u8 = 3;
/// Nobody tells the end of another one's claim, or of a group.
const LOOK: Duration = Duration::from_millis(2);
/// How often it looks whether a group that was killed is gone: for some seconds. Looks are counted,
/// not time, since a host that stands still, or starves, takes the time from both.
const LOOKS: u32 = 1_500;
/// Each so many looks it also looks whether those who are left are zombies, which takes longer.
const ZOMBIES: u32 = 8;

#[derive(Debug)]
pub(super) struct Watchdog {
    child: Child,
    claim: String,
}

impl Watchdog {
    /// Starts one that knows no deadline yet, and no command.
    pub(super) fn start(claim: String) -> io::Result<Self> {
        Self::new(claim, None)
    }

    /// Somebody has killed this one, and the command runs.
    pub(super) fn start_another(&self, group: Pid) -> io::Result<Self> {
        Self::new(self.claim.clone(), Some(group))
    }

    fn new(claim: String, group: Option<Pid>) -> io::Result<Self> {
        let child = Command::new(own_program()?)
            .arg0(OWN_NAME)
            .args([WATCHDOG, &claim])
            .args(group.map(|group| group.to_string()))
            // It keeps nobody's files open, and no folder busy.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .process_group(0)
            .spawn()?;
        Ok(Self { child, claim })
    }

    /// Whether it has its claim, so that no other one on this host has a command under it. Waits for
    /// that, at most so long.
    pub(super) fn is_ready(&mut self, limit: Duration) -> io::Result<bool> {
        let stdout = self.child.stdout.as_mut();
        let stdout = stdout.ok_or(io::ErrorKind::BrokenPipe)?;
        if !is_readable(stdout, limit) {
            return Ok(false);
        }
        match stdout.read(&mut [0; READY.len()])? {
            0 => Err(io::Error::other("somebody has killed its watchdog")),
            _ => Ok(true),
        }
    }

    /// From now on this deadline counts.
    pub(super) fn tell(&mut self, deadline: Deadline) -> io::Result<()> {
        let Deadline { term, kill, claim } = deadline;
        let [term, kill, claim] = [term, kill, claim].map(Moment::as_nanos);
        self.say(&format!("{term} {kill} {claim}"))
    }

    /// From now on it ends this group.
    pub(super) fn guard(&mut self, group: Pid, deadline: Deadline) -> io::Result<()> {
        self.tell(deadline)?;
        self.say(&format!("{GROUP}{group}"))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut();
        let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
        // In one piece.
        stdin.write_all(format!("{line}\n").as_bytes())?;
        // Somebody may have stopped it.
        let _ = kill_process(self.pid(), Signal::CONT);
        Ok(())
    }

    /// Whether it has begun to end the command, since the last look.
    pub(super) fn is_ending(&mut self) -> bool {
        let Some(stdout) = self.child.stdout.as_mut() else {
            return false;
        };
        let mut said = [0; READY.len() + ENDING.len()];
        let is_there = is_readable(stdout, Duration::ZERO);
        let count = if is_there {
            stdout.read(&mut said)
        } else {
            Ok(0)
        };
        count.is_ok_and(|count| said.get(..count).is_some_and(|said| said.ends_with(ENDING)))
    }

    /// Whether somebody has killed it before its time.
    pub(super) fn is_gone(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => status.code() != Some(i32::from(ACTED)),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The command has ended.
    pub(super) fn dismiss(&mut self) {
        // It may have gone by itself.
        let _ = self.say(OVER);
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What the process does.
pub(super) fn main(claim: &str, group: Option<Pid>) -> ExitCode {
    // Whoever signals everybody means the command, and this comes after it.
    let deaf = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let _ = signal_hook::flag::register(signal.as_raw(), Arc::clone(&deaf));
    }
    // `run` learns from the end of this process that there is no watchdog.
    let Ok(timer) = Timer::new() else {
        return ExitCode::FAILURE;
    };
    let mut claimed: Option<Claim> = None;
    let mut obstacle: Option<Obstacle> = None;
    let mut ears = Ears::new(group);
    let mut acted = false;
    loop {
        let now = SystemClock.now();
        // With the claim, which is over at the same time.
        if ears.group.is_some() && now >= ears.deadline.kill {
            return end(ears.group, claimed);
        }
        if now >= ears.deadline.claim {
            claimed = None;
        } else if claimed.is_none() && obstacle.as_ref().is_none_or(Obstacle::is_gone) {
            match Claim::take(claim) {
                Ok(taken) => {
                    claimed = Some(taken);
                    // A `run` that is dead is found below.
                    let _ = io::stdout().write_all(READY);
                }
                Err(other) => obstacle = Some(other),
            }
        }
        if let Some(group) = ears.group
            && now >= ears.deadline.term
            && !acted
        {
            acted = true;
            if !job::is_group_gone(group, true) {
                // Before the command can end of it.
                let _ = io::stdout().write_all(ENDING);
            }
            // What came too late to be heeded must not be.
            ears.is_deaf = true;
            signal_group(group, Signal::TERM);
            signal_group(group, Signal::CONT);
        }
        let group_wakes = match ears.group {
            None => Moment::NEVER,
            Some(_) if acted => ears.deadline.kill,
            Some(_) => ears.deadline.term,
        };
        let claim_wakes = match &claimed {
            Some(_) => ears.deadline.claim,
            None if now < ears.deadline.claim => now + LOOK,
            None => Moment::NEVER,
        };
        let connections = claimed.as_ref().and_then(Claim::connections);
        let files = [Some(rustix::stdio::stdin()), connections];
        let files: Vec<_> = files.into_iter().flatten().collect();
        let waited = timer.wait_until(group_wakes.min(claim_wakes), &files);
        if waited.is_err() {
            // A watchdog that cannot wait must not leave the command without one.
            return end(ears.group, claimed);
        }
        if let Some(claim) = &mut claimed {
            claim.accept();
        }
        match ears.listen() {
            Heard::Something => {}
            Heard::Over => return ExitCode::SUCCESS,
            Heard::Nobody => return end(ears.group, claimed),
        }
    }
}

/// Kills the group, and gives up the claim when it is gone.
fn end(group: Option<Pid>, mut claimed: Option<Claim>) -> ExitCode {
    if let Some(group) = group {
        signal_group(group, Signal::KILL);
        for look in 0..LOOKS {
            if job::is_group_gone(group, look % ZOMBIES == ZOMBIES - 1) {
                break;
            }
            std::thread::sleep(LOOK);
            if let Some(claim) = &mut claimed {
                claim.accept();
            }
        }
    }
    ExitCode::from(ACTED)
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
    group: Option<Pid>,
    is_deaf: bool,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Ears {
    fn new(group: Option<Pid>) -> Self {
        Self {
            deadline: Deadline::NEVER,
            group,
            is_deaf: false,
            rest: Vec::new(),
        }
    }

    fn listen(&mut self) -> Heard {
        let stdin = rustix::stdio::stdin();
        if !is_readable(&stdin, Duration::ZERO) {
            return Heard::Something;
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
            if let Some(group) = line.trim().strip_prefix(GROUP) {
                self.group = group.parse().ok().and_then(Pid::from_raw);
            }
            if let Some(deadline) = parse(line.trim()).filter(|_| !self.is_deaf) {
                self.deadline = deadline;
            }
        }
        Heard::Something
    }
}

fn parse(line: &str) -> Option<Deadline> {
    let mut numbers = line.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten().map(Moment::from_nanos);
    Some(Deadline {
        term: next()?,
        kill: next()?,
        claim: next()?,
    })
}
