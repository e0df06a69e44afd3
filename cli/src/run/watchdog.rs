//! A process that ends the command when `run` cannot: because it was killed, or was stopped for too
//! long.
//!
//! It is told deadlines through its standard input, each good until the next one. Without a word
//! from `run`, the command's group gets TERM and then KILL. When the other end is closed without
//! "over", `run` is dead: KILL.
//!
//! Some stores grant a dead holder's lock to the next one at once, which may be quicker than the
//! killing. So each watchdog has a claim on the name while its command may live, and the next one
//! on this host waits for it before its own command starts.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper::{Clock, LockKeeper, LockName, Moment, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use super::job::{OWN_NAME, own_program};
use super::plan::Deadline;

/// How it is called; not for people.
pub(super) const WATCHDOG: &str = "__watchdog";
const OVER: &str = "over";
const UNCLAIM: &str = "unclaim";
const READY: &[u8] = b"ready\n";
/// It has ended the command, or tried to.
const ACTED: u8 = 3;
/// `poll` does not count the time that the host sleeps.
const LONGEST: Duration = Duration::from_secs(1);
/// How long another watchdog's claim is respected: longer than that one needs.
const CLAIMED: Duration = Duration::from_secs(2);
/// Its end is told to nobody.
const LOOK: Duration = Duration::from_millis(2);
/// How long a group that was killed may take to be gone.
const GONE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Watchdog {
    child: Child,
}

impl Watchdog {
    /// Starts one for a process group, and waits until no other one has a command under `claim`.
    /// It knows no deadline yet: one from before that wait could be over, of a lock that was renewed.
    pub(super) fn start(group: Pid, claim: &str) -> io::Result<Self> {
        let child = Command::new(own_program()?)
            .arg0(OWN_NAME)
            .args([WATCHDOG, &group.to_string(), claim])
            // It keeps nobody's files open, and no folder busy.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .process_group(0)
            .spawn()?;
        let mut watchdog = Self { child };
        if let Some(stdout) = &mut watchdog.child.stdout {
            stdout.read_exact(&mut [0; READY.len()])?;
        }
        Ok(watchdog)
    }

    /// From now on this deadline counts.
    pub(super) fn tell(&mut self, deadline: Deadline) -> io::Result<()> {
        let Deadline { term, kill } = deadline;
        self.say(&format!("{} {}", term.as_nanos(), kill.as_nanos()))
    }

    /// The lock is lost and the command goes on: whoever has it next need not wait for that.
    pub(super) fn give_up_claim(&mut self) {
        // One that is gone has none.
        let _ = self.say(UNCLAIM);
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

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The command has ended.
    pub(super) fn dismiss(mut self) {
        // It may have gone by itself.
        let _ = self.say(OVER);
        drop(self.child.stdin.take());
        // Somebody may have stopped it.
        let _ = kill_process(self.pid(), Signal::CONT);
        let _ = self.child.wait();
    }
}

/// What the process does.
pub(super) fn main(group: Pid, claim: &str) -> ExitCode {
    // Whoever signals everybody means the command, and this comes after it.
    let deaf = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let _ = signal_hook::flag::register(signal.as_raw(), Arc::clone(&deaf));
    }
    let began = SystemClock.now();
    let mut claimed = None;
    let mut is_ready = false;
    let mut ears = Ears::default();
    let mut acted = false;
    loop {
        let now = SystemClock.now();
        if !is_ready {
            claimed = Claim::try_new(claim);
            is_ready = claimed.is_some() || now >= began + CLAIMED;
            if is_ready && io::stdout().write_all(READY).is_err() {
                return end(group, claimed);
            }
        }
        if ears.is_unclaimed {
            claimed = None;
        }
        if now >= ears.deadline.kill {
            return end(group, claimed);
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
        let limit = if is_ready { LONGEST } else { LOOK };
        match ears.listen(next.saturating_since(now).min(limit)) {
            Heard::Something => {}
            Heard::Over => return ExitCode::SUCCESS,
            Heard::Nobody => return end(group, claimed),
        }
    }
}

/// Kills the group, and gives up the claim when it is gone.
fn end(group: Pid, claimed: Option<Claim>) -> ExitCode {
    signal_group(group, Signal::KILL);
    let until = SystemClock.now() + GONE;
    while test_kill_process_group(group).is_ok() && SystemClock.now() < until {
        std::thread::sleep(LOOK);
    }
    drop(claimed);
    ExitCode::from(ACTED)
}

/// A name that one process of the host can have, and that is free when that one has ended.
#[cfg(target_os = "linux")]
struct Claim {
    _socket: std::os::unix::net::UnixListener,
}

#[cfg(target_os = "linux")]
impl Claim {
    /// `None`: somebody has it.
    fn try_new(name: &str) -> Option<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let socket = UnixListener::bind_addr(&address).ok()?;
        Some(Self { _socket: socket })
    }
}

#[cfg(not(target_os = "linux"))]
struct Claim;

#[cfg(not(target_os = "linux"))]
impl Claim {
    fn try_new(_name: &str) -> Option<Self> {
        Some(Self)
    }
}

/// The claim on a lock's name.
pub(super) fn claim(keeper: &LockKeeper, name: &LockName) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (keeper.place(), name.as_str()).hash(&mut hasher);
    format!("lockkeeper-run-{:016x}", hasher.finish())
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
    /// The command goes on without the lock.
    is_unclaimed: bool,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Default for Ears {
    fn default() -> Self {
        Self {
            deadline: Deadline::NEVER,
            is_deaf: false,
            is_unclaimed: false,
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
            self.is_unclaimed |= line.trim() == UNCLAIM;
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
