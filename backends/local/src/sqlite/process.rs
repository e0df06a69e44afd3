//! The identity of a process, and whether another process still lives.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The end of the pid scope outside of containers: PROC_PID_INIT_INO of linux/proc_ns.h.
const HOST_PIDS: &str = "/pid:[4026531836]";

/// The pid of a lease that no process has.
const NONE: u32 = 0;

/// The identity of a process. Pids are reused; pids with start times are not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The start time since boot, in the system's units; 0 if it is not known.
    pub(super) start: u64,
    /// Where the pid is valid, as `boot id/pid namespace`. Empty if this system does not say.
    pub(super) pid_scope: String,
}

/// The cached identity of a process. A forked child inherits its parent's cache, and appends its own
/// identity.
struct Cached {
    process: Process,
    child: OnceLock<Box<Cached>>,
}

impl Cached {
    fn read(pid: u32) -> Self {
        Self {
            process: Process {
                pid,
                start: system::start_time(pid),
                pid_scope: system::pid_scope(pid),
            },
            child: OnceLock::new(),
        }
    }
}

impl Process {
    /// Returns the identity of this process, also after a fork.
    pub(super) fn own() -> &'static Self {
        static OLDEST: OnceLock<Cached> = OnceLock::new();
        let pid = std::process::id();
        let mut cached = OLDEST.get_or_init(|| Cached::read(pid));
        while let Some(child) = cached.child.get() {
            cached = child;
        }
        if cached.process.pid != pid {
            cached = cached.child.get_or_init(|| Box::new(Cached::read(pid)));
        }
        &cached.process
    }

    /// Returns whether this system can tell that a process has ended.
    pub(super) fn can_detect_ends() -> bool {
        !Self::own().pid_scope.is_empty()
    }

    /// Returns whether no process has the lease: it was detached, and ends with its ttl.
    pub(super) fn is_none(&self) -> bool {
        self.pid == NONE
    }

    /// Returns whether the pid means the same process here.
    fn has_valid_pid(&self) -> bool {
        !self.is_none() && !self.pid_scope.is_empty() && self.shares_pid_scope(Self::own())
    }

    /// Returns whether both processes are in one pid namespace, and see one host name.
    pub(super) fn shares_pid_scope(&self, other: &Self) -> bool {
        self.pid_scope == other.pid_scope
    }

    /// Returns whether the process is known to have ended.
    pub(super) fn is_dead(&self) -> bool {
        let own = Self::own();
        if self == own {
            return false;
        }
        self.is_of_another_boot(own)
            || (self.has_valid_pid() && system::has_ended(self.pid, self.start))
    }

    /// Returns whether the host was restarted between the starts of the two processes. Returns
    /// `false` if either is in a container: some containers (systemd-nspawn, LXC) have their own
    /// boot id.
    fn is_of_another_boot(&self, other: &Self) -> bool {
        let boots = [self, other].map(|process| process.pid_scope.strip_suffix(HOST_PIDS));
        matches!(boots, [Some(its), Some(ours)] if its != ours)
    }
}

/// Remembers which processes are dead: many rows belong to one process, and each check reads `/proc`.
#[derive(Default)]
pub(super) struct KnownProcesses(HashMap<Process, bool>);

impl KnownProcesses {
    /// Returns what [`Process::is_dead`] returned when it was asked first.
    pub(super) fn is_dead(&mut self, process: &Process) -> bool {
        if let Some(is_dead) = self.0.get(process) {
            return *is_dead;
        }
        let is_dead = process.is_dead();
        self.0.insert(process.clone(), is_dead);
        is_dead
    }
}

/// Watches a process, and notices its end at once.
#[derive(Debug)]
pub(super) struct HolderWatch {
    pub(super) process: Process,
    /// Becomes readable at the end of the process.
    #[cfg(target_os = "linux")]
    pub(super) fd: std::os::fd::OwnedFd,
}

impl HolderWatch {
    /// Returns `None` for this process, for one that has ended, and where the system cannot watch processes.
    #[cfg(target_os = "linux")]
    pub(super) fn new(process: &Process) -> Option<Self> {
        let is_other = process.has_valid_pid() && process != Process::own();
        Some(Self {
            process: process.clone(),
            fd: is_other.then(|| system::pidfd(process.pid).ok())??,
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn new(_process: &Process) -> Option<Self> {
        None
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

    pub(super) fn pid_scope(pid: u32) -> String {
        // In a /proc of another pid namespace, these pids are those of other processes.
        let shown = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if shown.split(' ').next() != Some(pid.to_string().as_str()) {
            return String::new();
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let pids = fs::read_link("/proc/self/ns/pid");
        match (boot, pids) {
            (Ok(boot), Ok(pids)) => format!("{}/{}", boot.trim(), pids.display()),
            _ => String::new(),
        }
    }

    /// Reads state and start time; see proc_pid_stat(5). The command in brackets may contain anything.
    fn stat(pid: u32) -> std::io::Result<Option<(char, u64)>> {
        let text = fs::read(format!("/proc/{pid}/stat"))?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.rsplit_once(") ").and_then(|(_, rest)| {
            let mut fields = rest.split(' ');
            let state = fields.next()?.chars().next()?;
            // The 22nd field; the state is the 3rd.
            let start = fields.nth(18)?.parse().ok()?;
            Some((state, start))
        }))
    }

    pub(super) fn start_time(pid: u32) -> u64 {
        stat(pid).ok().flatten().map_or(0, |(_, start)| start)
    }

    pub(super) fn pidfd(pid: u32) -> rustix::io::Result<OwnedFd> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
    }

    pub(super) fn has_ended(pid: u32, start: u64) -> bool {
        match stat(pid) {
            Ok(Some((_, other))) if start != 0 && other != start => true,
            Ok(Some(('X' | 'x', _))) => true,
            // A process whose main thread has ended is a zombie while other threads go on.
            Ok(Some(('Z', _))) => all_threads_ended(pid),
            Ok(_) => false,
            // A process that /proc hides (hidepid) may still live.
            Err(_) => i32::try_from(pid)
                .ok()
                .and_then(Pid::from_raw)
                .is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH)),
        }
    }

    fn all_threads_ended(pid: u32) -> bool {
        match pidfd(pid) {
            Ok(fd) => {
                let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Err(errno) => errno == Errno::SRCH,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    pub(super) fn pid_scope(_pid: u32) -> String {
        "host".to_owned()
    }

    pub(super) fn start_time(_pid: u32) -> u64 {
        0
    }

    pub(super) fn has_ended(pid: u32, _start: u64) -> bool {
        i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn of(pid: u32) -> Process {
        Process {
            pid,
            start: system::start_time(pid),
            pid_scope: Process::own().pid_scope.clone(),
        }
    }

    #[test]
    fn processes_of_another_boot_are_recognised() {
        let of = |boot: &str, pids: u32| Process {
            pid: 7,
            start: 7,
            pid_scope: format!("{boot}/pid:[{pids}]"),
        };
        let host = 4_026_531_836;
        let now = of("b", host);
        assert!(of("a", host).is_of_another_boot(&now));
        assert!(!of("b", host).is_of_another_boot(&now));
        // The boot ids of containers are not compared.
        assert!(!of("a", 4_026_532_000).is_of_another_boot(&now));
        assert!(!now.is_of_another_boot(&of("a", 4_026_532_000)));
        assert!(!of("a", 4_026_532_000).is_of_another_boot(&of("b", 4_026_532_001)));
    }

    #[test]
    fn dead_processes_are_recognised() {
        assert!(Process::can_detect_ends());
        assert!(!Process::own().is_dead());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = of(child.id());
        assert!(process.start > 0);
        assert!(!process.is_dead());

        let reused = Process {
            start: process.start - 1,
            ..process.clone()
        };
        assert!(reused.is_dead(), "the pid was reused");
        let elsewhere = Process {
            pid_scope: reused.pid_scope.clone() + "x",
            ..reused.clone()
        };
        assert!(
            !elsewhere.is_dead(),
            "a process of another pid namespace is not known to be dead"
        );

        let watch = HolderWatch::new(&process).unwrap();
        child.kill().unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &watch.fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(process.is_dead(), "a zombie is dead");
        child.wait().unwrap();
        assert!(process.is_dead());
    }
}
