//! The command's process: starting it, sending it signals, and finding out how it ended.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, test_kill_process_group, waitid, waitpgid, waitpid,
};

use super::signals::{is_handled, is_proc_ours};
use super::status_file::{self, Origin};
use super::stderr::{self, Level};
use crate::program::own_program;

/// The hidden argument that makes this program a process that becomes the command.
pub(super) const CHILD: &str = "__child";
/// The name of the helper processes in `ps`.
pub(super) const OWN_NAME: &str = "lockkeeper";
/// The argument after the parent's process id: no message is written. The file of --status-file comes next, or nothing.
pub(super) const QUIET: &str = "quiet";
const NOT_FOUND: u8 = 127;
pub(super) const NOT_RUN: u8 = 126;

/// A command in a process group of its own.
#[derive(Debug)]
pub(super) struct CommandProcess {
    group: Pid,
}

/// The state of the command's own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// Stopped by this signal.
    Stopped(Option<Signal>),
    Ended(Status),
}

impl CommandProcess {
    /// Starts the process, which stops just before it becomes the command.
    pub(super) fn spawn_stopped(
        command: &[OsString],
        environment: Vec<(OsString, OsString)>,
        status_file: Option<&Path>,
    ) -> io::Result<Self> {
        // Orphans of the group become children of this process, which can then wait for them.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let messages = if stderr::level() == Level::Quiet {
            QUIET
        } else {
            "normal"
        };
        let mut child = Command::new(own_program()?);
        child
            .arg0(OWN_NAME)
            .args([CHILD, &getpid().to_string(), messages])
            .arg(status_file.unwrap_or(Path::new("")))
            .args(command)
            .process_group(0);
        // Settings may hold secrets, and only this program needs them.
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"LOCKKEEPER_") {
                child.env_remove(name);
            }
        }
        child.envs(environment);
        let child = child.spawn()?;
        let group = Pid::from_child(&child);
        let process = Self { group };
        match retry_on_intr(|| waitpid(Some(group), WaitOptions::UNTRACED))? {
            Some((_, status)) if status.stopped() => Ok(process),
            _ => {
                let text = "the new process ended before it became the command";
                Err(io::Error::other(text))
            }
        }
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the whole group.
    pub(super) fn signal(&self, signal: Signal) {
        signal_group(self.group, signal);
    }

    /// Sends a signal to the command's own process, if that process handles the signal.
    pub(super) fn signal_if_handled(&self, signal: Signal) {
        if is_handled(self.group, signal) {
            let _ = kill_process(self.group, signal);
        }
    }

    /// Returns the state of the command.
    ///
    /// A command that has ended stays a zombie until [`reap`](Self::reap), so that no other
    /// process gets its id.
    pub(super) fn poll(&self) -> State {
        if let Some(status) = self.ended() {
            return State::Ended(status);
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

    /// Returns how the command ended, or `None` while it runs.
    pub(super) fn ended(&self) -> Option<Status> {
        let quick = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.group), quick | WaitIdOptions::EXITED).ok()??;
        Some(match ended.terminating_signal() {
            Some(signal) => Status::Signal(signal),
            None => Status::Code(ended.exit_status().unwrap_or(1)),
        })
    }

    /// Waits until the command has ended, and removes the zombie.
    pub(super) fn reap(&self) {
        let _ = retry_on_intr(|| waitpid(Some(self.group), WaitOptions::empty()));
    }

    /// Returns whether no process of the group is left. To be called after [`reap`](Self::reap).
    pub(super) fn is_group_gone(&self) -> bool {
        while let Ok(Some(_)) = waitpgid(self.group, WaitOptions::NOHANG) {}
        is_group_gone(self.group, true)
    }
}

/// Sends a signal to a whole group.
pub(super) fn signal_group(group: Pid, signal: Signal) {
    // The group may have ended.
    let _ = kill_process_group(group, signal);
}

/// Returns whether no process of a group runs any more.
///
/// With `ignore_zombies`, processes that have ended do not count, even if their parent has not waited for them yet.
/// The parent may be stopped, or be a slow init, or never wait.
pub(super) fn is_group_gone(group: Pid, ignore_zombies: bool) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH) || (ignore_zombies && only_zombies(group))
}

fn only_zombies(group: Pid) -> bool {
    let group = group.to_string();
    let ended = |process: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // The name may have brackets. After it come state, parent and group, and 14 fields later the
        // number of threads. A process whose first thread has ended is shown as a zombie while other
        // threads run.
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
    // Processes of other users may be hidden, so a group without members proves nothing.
    members.peek().is_some() && members.all(|ended| ended) && is_proc_ours()
}

/// Takes the status of the orphans that became children of this process and have ended.
///
/// Others wait for the children in `keep`. If such a child is the next that has ended, the orphans
/// behind it stay until the next call.
#[cfg(target_os = "linux")]
pub(super) fn reap_orphans(keep: &[Pid]) {
    use nix::sys::wait::{Id, WaitPidFlag, waitid as peek, waitpid as take};
    let quick = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Some(pid) = peek(Id::All, quick).ok().and_then(|status| status.pid()) {
        if keep.iter().any(|kept| kept.as_raw_pid() == pid.as_raw()) || take(pid, None).is_err() {
            return;
        }
    }
}

/// Elsewhere orphans become children of init.
#[cfg(not(target_os = "linux"))]
pub(super) fn reap_orphans(_keep: &[Pid]) {}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Code(i32),
    Signal(i32),
}

impl Status {
    /// Returns the signal that ended the command.
    pub(super) fn signal(self) -> Option<Signal> {
        match self {
            Status::Code(_) => None,
            Status::Signal(signal) => Signal::from_named_raw(signal),
        }
    }

    /// Returns the exit status by which a shell shows how the command ended.
    pub(super) fn code(self) -> u8 {
        let code = match self {
            Status::Code(code) => code,
            Status::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

/// Runs the process that becomes the command. `parent` is the process id of `run`.
pub(super) fn main(parent: Option<i32>, status_file: &OsStr, command: &[OsString]) -> ExitCode {
    // The command must not outlive `run`, however `run` ends.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let is_orphan = || getppid().map(|pid| pid.as_raw_nonzero().get()) != parent;
    let Some((program, args)) = command.split_first() else {
        return ExitCode::from(NOT_RUN);
    };
    // If the parent died before the death signal was set, no signal comes.
    if is_orphan() {
        return ExitCode::from(NOT_RUN);
    }
    // `run` continues this process when the watchdog knows its group and the terminal is lent.
    let _ = kill_process(getpid(), Signal::STOP);
    if is_orphan() {
        return ExitCode::from(NOT_RUN);
    }
    let mut error = Command::new(program).args(args).exec();
    if error.kind() == io::ErrorKind::PermissionDenied && !is_file(program, env::var_os("PATH")) {
        // Only a folder of PATH could not be searched, which shells report as "not found", too.
        error = Errno::NOENT.into();
    }
    // `exec` has restored the default action of PIPE, which would end this process if standard error
    // has no reader.
    let _ = signal_hook::flag::register(Signal::PIPE.as_raw(), Arc::default());
    let shown = program.to_string_lossy();
    let (code, advice) = match error.kind() {
        io::ErrorKind::NotFound => (NOT_FOUND, "is it installed, and in PATH?"),
        io::ErrorKind::PermissionDenied => (NOT_RUN, "is it a program that this user may run?"),
        _ => (NOT_RUN, "is it a program for this system?"),
    };
    stderr::warn(&format!("cannot run {shown}: {error}; {advice}"));
    if !status_file.is_empty() {
        status_file::write(status_file, Origin::Lockkeeper, code);
    }
    ExitCode::from(code)
}

/// Returns whether a program is a file, by its path or in a folder of PATH; it need not be executable.
fn is_file(program: &OsStr, path: Option<OsString>) -> bool {
    let is_named = program.as_encoded_bytes().contains(&b'/');
    let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    is_named || env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use serial_test::serial;

    use super::*;

    #[test]
    fn is_file_searches_the_folders_that_exec_searches() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("text"), "").unwrap();
        let path = env::join_paths([Path::new("/no-such-folder"), folder.path()]).unwrap();
        for (program, expected) in [("text", true), ("other", false), ("./other", true)] {
            assert_eq!(is_file(program.as_ref(), Some(path.clone())), expected);
        }
        assert!(is_file("sh".as_ref(), None));
    }

    #[test]
    #[serial(fork)]
    fn group_of_zombies_is_gone() {
        let mut child = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_child(&child);
        assert!(!is_group_gone(group, true), "it runs");
        child.kill().unwrap();
        // Waits for its end, but leaves it a zombie.
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
