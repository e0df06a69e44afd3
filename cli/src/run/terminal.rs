//! The terminal: which process group has it, and lending it to the command.
//!
//! Ctrl-Z stops `run` with its command, as shells expect. It cannot renew then, so after the ttl the command has
//! been ended and the lock is lost. Without a terminal, a stopped command keeps its lock.
//!
//! Ctrl-C goes to the foreground group, which is the command's alone. So `run` sends the signal to its own group
//! and ends by it. Shells, make and xargs go on after a program that answers 130. An INT from elsewhere cannot be
//! told from the key.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, getpid, getppid, getsid};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal that this process was started from.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: OwnedFd,
    /// Its settings at the start.
    settings: Option<Termios>,
    /// The group that the terminal is lent to.
    lent: Option<Pid>,
}

impl Terminal {
    /// Returns the terminal, or `None` if this process has none.
    pub(super) fn find() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self {
            settings: tcgetattr(&tty).ok(),
            tty,
            lent: None,
        })
    }

    /// Returns whether this process is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| own_group() == Some(group))
    }

    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Makes `group` the foreground job, if this process is in the foreground.
    pub(super) fn lend(&mut self, group: Pid) {
        if self.is_ours() && self.set(group) {
            self.lent = Some(group);
        }
    }

    /// Takes the terminal back, if the group that it was lent to still has it. Returns whether that
    /// group had it.
    pub(super) fn take_back(&mut self) -> bool {
        let lent = self.lent.take();
        let is_there = lent.is_some() && tcgetpgrp(&self.tty).ok() == lent;
        if is_there && let Some(own) = own_group() {
            self.set(own);
        }
        is_there
    }

    /// Restores the settings, which a command that was killed may have left without echo.
    pub(super) fn restore(&self) {
        if self.is_ours()
            && let Some(settings) = &self.settings
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, settings);
        }
    }

    fn set(&self, group: Pid) -> bool {
        // A process in the background would be stopped for this call.
        let stop = SigSet::from(Signal::SIGTTOU);
        let _ = stop.thread_block();
        let set = tcsetpgrp(&self.tty, group);
        let _ = stop.thread_unblock();
        set.is_ok()
    }
}

/// Returns whether the command can have the terminal from the start.
///
/// In a pipe, another program of the same job may need the terminal. Then the command gets it when it
/// asks for it (TTIN).
pub(super) fn is_alone() -> bool {
    let is_pipe = |fd: std::os::fd::BorrowedFd<'_>| {
        let stat = rustix::fs::fstat(fd);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
    };
    !is_pipe(std::io::stdin().as_fd()) && !is_pipe(std::io::stdout().as_fd())
}

/// Returns the group of this process.
///
/// `None` if the group is of another PID namespace, as in a container that was started without a
/// session of its own. Such a group cannot be given the terminal.
pub(super) fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

/// Returns whether a signal counts as a key at the terminal and its effect concerns the parent.
/// The parent is then a shell with the same terminal.
pub(super) fn is_key(signal: rustix::process::Signal) -> bool {
    use rustix::process::Signal;
    let leads = getsid(None) == Ok(getpid());
    matches!(signal, Signal::INT | Signal::QUIT) && !leads && is_parents_session()
}

/// Returns whether no process would continue this one if it stopped.
///
/// That is so if the parent is of another session, or if the session's leader is of this group and
/// would be stopped, too.
pub(super) fn is_orphan() -> bool {
    // Ids of another PID namespace are 0. If the parent and session ids are both 0, the session was
    // inherited from outside this namespace. If the group id is 0, too, it may be the leader's group.
    !is_parents_session() || getsid(None) == Ok(getpgrp())
}

fn is_parents_session() -> bool {
    let parent = Some(getppid()).filter(|parent| parent.as_raw() != 0);
    let session = parent.and_then(|parent| getsid(Some(parent)).ok());
    session.is_some() && session == getsid(None).ok()
}
