//! Who we are, and whether somebody else still lives.

use std::sync::OnceLock;

/// How places end that are in no container: PROC_PID_INIT_INO of linux/proc_ns.h.
const HOST: &str = "/pid:[4026531836]";

/// A process as others can recognise it: pids are reused, pids with start times are not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// In the system's own units since boot; 0 where it is not known.
    pub(super) start: u64,
    /// Where the pid means something: `boot id/pid namespace`. Empty: nobody can judge.
    pub(super) place: String,
}

/// A process that has asked who it is. Its memory goes to the children that it forks, where it says
/// nothing about them: a child that asks adds itself behind its parent.
struct Known {
    process: Process,
    child: OnceLock<Box<Known>>,
}

impl Known {
    fn read(pid: u32) -> Self {
        Self {
            process: Process {
                pid,
                start: system::start_time(pid),
                place: system::place(pid),
            },
            child: OnceLock::new(),
        }
    }
}

impl Process {
    /// This process, also after a fork.
    pub(super) fn own() -> &'static Self {
        static OLDEST: OnceLock<Known> = OnceLock::new();
        let pid = std::process::id();
        let mut known = OLDEST.get_or_init(|| Known::read(pid));
        while let Some(child) = known.child.get() {
            known = child;
        }
        if known.process.pid != pid {
            known = known.child.get_or_init(|| Box::new(Known::read(pid)));
        }
        &known.process
    }

    /// Whether a dead owner's lock can be told from a live one's here.
    pub(super) fn can_judge() -> bool {
        !Self::own().place.is_empty()
    }

    /// Whether its pid means here what it means there.
    fn is_near(&self) -> bool {
        !self.place.is_empty() && self.place == Self::own().place
    }

    /// Whether the other one runs where this one does: then both know the host by one name.
    pub(super) fn is_neighbour(&self, other: &Self) -> bool {
        self.place == other.place
    }

    /// Whether it is known to have ended. `false` where that cannot be judged from here.
    pub(super) fn is_dead(&self) -> bool {
        let own = Self::own();
        if self == own {
            return false;
        }
        self.is_of_another_boot(own) || (self.is_near() && system::has_ended(self.pid, self.start))
    }

    /// Whether the host was started anew between the two. `false` where either is in a container: some
    /// of these (systemd-nspawn, LXC) have a boot id of their own.
    fn is_of_another_boot(&self, other: &Self) -> bool {
        let boots = [self, other].map(|process| process.place.strip_suffix(HOST));
        matches!(boots, [Some(its), Some(ours)] if its != ours)
    }

    /// Something that can be polled for its end; `None` where there is no such thing.
    #[cfg(target_os = "linux")]
    pub(super) fn watch(&self) -> Option<std::os::fd::OwnedFd> {
        if !self.is_near() || self == Self::own() {
            return None;
        }
        system::pidfd(self.pid).ok()
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

    pub(super) fn place(pid: u32) -> String {
        // A /proc of another pid namespace would show other processes under our numbers.
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

    /// State and start time; see proc_pid_stat(5). The command in brackets may contain anything.
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
            // A zombie, or only its main thread is: other threads may go on.
            Ok(Some(('Z', _))) => all_threads_ended(pid),
            Ok(_) => false,
            // Hidden processes (hidepid) are missing in /proc, too.
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

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    pub(super) fn place(_pid: u32) -> String {
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

#[cfg(not(unix))]
mod system {
    pub(super) fn place(_pid: u32) -> String {
        String::new()
    }

    pub(super) fn start_time(_pid: u32) -> u64 {
        0
    }

    pub(super) fn has_ended(_pid: u32, _start: u64) -> bool {
        false
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
            place: Process::own().place.clone(),
        }
    }

    #[test]
    fn nobody_outlives_a_boot() {
        let of = |boot: &str, pids: u32| Process {
            pid: 7,
            start: 7,
            place: format!("{boot}/pid:[{pids}]"),
        };
        let host = 4_026_531_836;
        let now = of("b", host);
        assert!(of("a", host).is_of_another_boot(&now));
        assert!(!of("b", host).is_of_another_boot(&now));
        // The boot ids of containers say nothing.
        assert!(!of("a", 4_026_532_000).is_of_another_boot(&now));
        assert!(!now.is_of_another_boot(&of("a", 4_026_532_000)));
        assert!(!of("a", 4_026_532_000).is_of_another_boot(&of("b", 4_026_532_001)));
    }

    #[test]
    fn tells_the_living_from_the_dead() {
        assert!(Process::can_judge());
        assert!(!Process::own().is_dead());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = of(child.id());
        assert!(process.start > 0);
        assert!(!process.is_dead());

        let reused = Process {
            start: process.start - 1,
            ..process.clone()
        };
        assert!(reused.is_dead(), "the pid is another process's now");
        let elsewhere = Process {
            place: reused.place.clone() + "x",
            ..reused.clone()
        };
        assert!(!elsewhere.is_dead(), "another pid namespace is not judged");

        let ends = process.watch().unwrap();
        child.kill().unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &ends,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(process.is_dead(), "a zombie is dead");
        child.wait().unwrap();
        assert!(process.is_dead());
    }
}
