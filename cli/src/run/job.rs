//! The command: starting it, signalling it, and what became of it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, test_kill_process_group, waitid, waitpgid, waitpid,
};

use super::start::Voice;

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
    std::env::current_exe()
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
        for (name, _) in std::env::vars_os() {
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

    /// What has become of the command since the last look. One that ended stays until
    /// [`status`](Self::status), so that nobody else gets its number.
    pub(super) fn look(&self) -> State {
        let id = || WaitId::Pid(self.group);
        let quick = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(_)) = waitid(id(), quick | WaitIdOptions::EXITED) {
            return State::Ended;
        }
        match waitid(id(), WaitIdOptions::NOHANG | WaitIdOptions::STOPPED) {
            Ok(Some(status)) => {
                let signal = status.stopping_signal();
                State::Stopped(signal.and_then(Signal::from_named_raw))
            }
            _ => State::Running,
        }
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
        test_kill_process_group(self.group) == Err(Errno::SRCH)
    }
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
    let error = Command::new(program).args(args).exec();
    let shown = program.to_string_lossy();
    let (code, way_out) = match error.kind() {
        io::ErrorKind::NotFound => (NOT_FOUND, "is it installed, and in PATH?"),
        io::ErrorKind::PermissionDenied => (NOT_RUN, "is it a program that this user may run?"),
        _ => (NOT_RUN, "is it a program for this system?"),
    };
    voice.warn(&format!("cannot run {shown}: {error}; {way_out}"));
    ExitCode::from(code)
}
