//! The command: starting it, signalling it, and what became of it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, test_kill_process_group, waitid, waitpgid, waitpid,
};

use super::signals::is_handled;
use super::voice::Voice;

/// How the process is called that becomes the command; not for people.
pub(super) const CHILD: &str = "__child";
/// What `ps` shows of the helpers.
pub(super) const OWN_NAME: &str = "lockkeeper";
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// This program, also when its file was replaced meanwhile.
pub(super) fn own_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    env::current_exe()
}

/// A command in a process group of its own.
#[derive(Debug)]
pub(super) struct Job {
    group: Pid,
}

/// How the command's own process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// By which signal.
    Stopped(Option<Signal>),
    Ended,
}

impl Job {
    /// Makes the process, stopped just before it becomes the command.
    pub(super) fn prepare(
        command: &[OsString],
        environment: &[(&str, String)],
        voice: Voice,
    ) -> io::Result<Self> {
        // The orphans of the group become this process's children: it sees them end.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let mut child = Command::new(own_program()?);
        child
            .arg0(OWN_NAME)
            .args([CHILD, &getpid().to_string(), voice.word()])
            .args(command)
            .process_group(0);
        // Settings may hold secrets, and are nobody's business beyond this program.
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"LOCKKEEPER_") {
                child.env_remove(name);
            }
        }
        child.envs(environment.iter().map(|(name, value)| (name, value)));
        let child = child.spawn()?;
        let group = Pid::from_child(&child);
        let job = Self { group };
        loop {
            match waitpid(Some(group), WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => return Ok(job),
                Ok(_) => return Err(io::Error::other("it ended before it began")),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to all of the group.
    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// Sends a signal to the command's own process, if it handles that.
    pub(super) fn offer(&self, signal: Signal) {
        if is_handled(self.group, signal) {
            let _ = kill_process(self.group, signal);
        }
    }

    /// What has become of the command since the last look. One that ended stays until
    /// [`status`](Self::status), so that nobody else gets its number.
    pub(super) fn look(&self) -> State {
        if self.has_ended() {
            return State::Ended;
        }
        let stopped = WaitIdOptions::NOHANG | WaitIdOptions::STOPPED;
        match waitid(WaitId::Pid(self.group), stopped) {
            Ok(Some(status)) => {
                let signal = status.stopping_signal();
                State::Stopped(signal.and_then(Signal::from_named_raw))
            }
            _ => State::Running,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        let quick = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.group), quick | WaitIdOptions::EXITED);
        matches!(ended, Ok(Some(_)))
    }

    /// How it ended, as shells count it. Blocks until it has.
    pub(super) fn status(&self) -> Status {
        loop {
            match waitpid(Some(self.group), WaitOptions::empty()) {
                Ok(Some((_, status))) => {
                    if let Some(signal) = status.terminating_signal() {
                        return Status::Signal(signal);
                    }
                    if let Some(code) = status.exit_status() {
                        return Status::Code(code);
                    }
                }
                Ok(None) | Err(Errno::INTR) => {}
                // Somebody else has waited for it; it is gone all the same.
                Err(_) => return Status::Code(1),
            }
        }
    }

    /// Whether nobody of the group is left, after the command's own status was taken.
    pub(super) fn is_over(&self) -> bool {
        while let Ok(Some(_)) = waitpgid(self.group, WaitOptions::NOHANG) {}
        is_group_gone(self.group, true)
    }
}

/// Whether nobody of a group runs any more. With `zombies`, those do not count who have ended and
/// whose parent has not asked yet: it may be stopped, or an init that is slow, or never asks.
pub(super) fn is_group_gone(group: Pid, zombies: bool) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH) || (zombies && only_zombies(group))
}

#[cfg(target_os = "linux")]
fn only_zombies(group: Pid) -> bool {
    let group = group.to_string();
    let ended = |process: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // Behind the name, which may have brackets: state, parent, group, and 14 fields later the
        // number of threads, which may go on without their first.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let is_member = fields.nth(1)? == group;
        let threads = fields.nth(14)?;
        is_member.then_some(matches!(state, "Z" | "X") && matches!(threads, "0" | "1"))
    };
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let mut members = processes.flatten().filter_map(ended).peekable();
    // Those of other users may be hidden.
    members.peek().is_some() && members.all(|ended| ended) && is_proc_ours()
}

/// Whether /proc numbers processes as this one's namespace does. Another one's shows strangers.
pub(super) fn is_proc_ours() -> bool {
    let shown = std::fs::read_link("/proc/self").unwrap_or_default();
    shown.to_str() == Some(getpid().to_string().as_str())
}

#[cfg(not(target_os = "linux"))]
fn only_zombies(_group: Pid) -> bool {
    false
}

/// Takes the status of the orphans that came to this process and have ended. `keep` are those whose
/// status somebody else takes: what is behind such a one stays until the next time.
#[cfg(target_os = "linux")]
pub(super) fn reap_orphans(keep: &[Pid]) {
    use nix::sys::wait::{Id, WaitPidFlag, waitid as look, waitpid as take};
    let quick = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Some(pid) = look(Id::All, quick).ok().and_then(|status| status.pid()) {
        if keep.iter().any(|kept| kept.as_raw_pid() == pid.as_raw()) || take(pid, None).is_err() {
            return;
        }
    }
}

/// Elsewhere orphans are init's.
#[cfg(not(target_os = "linux"))]
pub(super) fn reap_orphans(_keep: &[Pid]) {}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Code(i32),
    Signal(i32),
}

impl Status {
    pub(super) fn code(self) -> u8 {
        let code = match self {
            Status::Code(code) => code,
            Status::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

/// What the process does that becomes the command: its parent's id and the command are given.
pub(super) fn main(parent: Option<i32>, voice: Voice, command: &[OsString]) -> ExitCode {
    // Whatever happens to the parent, by whatever hand.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let is_orphan = || getppid().map(|pid| pid.as_raw_nonzero().get()) != parent;
    let Some((program, args)) = command.split_first() else {
        return ExitCode::from(NOT_RUN);
    };
    // The parent died before the line above, and the signal went to nobody.
    if is_orphan() {
        return ExitCode::from(NOT_RUN);
    }
    // Until the watchdog is there, and the terminal lent.
    let _ = kill_process(getpid(), Signal::STOP);
    if is_orphan() {
        return ExitCode::from(NOT_RUN);
    }
    let mut error = Command::new(program).args(args).exec();
    if error.kind() == io::ErrorKind::PermissionDenied && !is_file(program, env::var_os("PATH")) {
        // A folder of PATH may not be searched: shells do not speak of that either.
        error = Errno::NOENT.into();
    }
    // `exec` has made it end this process, should nobody read what follows.
    let _ = signal_hook::flag::register(Signal::PIPE.as_raw(), Arc::default());
    let shown = program.to_string_lossy();
    let (code, way_out) = match error.kind() {
        io::ErrorKind::NotFound => (NOT_FOUND, "is it installed, and in PATH?"),
        io::ErrorKind::PermissionDenied => (NOT_RUN, "is it a program that this user may run?"),
        _ => (NOT_RUN, "is it a program for this system?"),
    };
    voice.warn(&format!("cannot run {shown}: {error}; {way_out}"));
    ExitCode::from(code)
}

/// Whether there is such a program, by its path or in a folder of PATH, if only one that may not run.
fn is_file(program: &OsStr, path: Option<OsString>) -> bool {
    let is_named = program.as_encoded_bytes().contains(&b'/');
    let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    is_named || env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_program_is_looked_for_where_exec_does() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("text"), "").unwrap();
        let path = env::join_paths([Path::new("/no-such-folder"), folder.path()]).unwrap();
        for (program, there) in [("text", true), ("other", false), ("./other", true)] {
            assert_eq!(is_file(program.as_ref(), Some(path.clone())), there);
        }
        assert!(is_file("sh".as_ref(), None));
    }

    #[test]
    fn zombies_are_nobody() {
        let mut child = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_child(&child);
        assert!(!is_group_gone(group, true), "it runs");
        child.kill().unwrap();
        // Waits for its end, and does not ask for its status.
        waitid(
            WaitId::Pid(group),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )
        .unwrap();
        assert!(!is_group_gone(group, false));
        assert!(is_group_gone(group, true));
        child.wait().unwrap();
        assert!(is_group_gone(group, false));
    }
}
