//! The terminal, and whose it is.

use std::io::IsTerminal;
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
    /// How it was set up.
    settings: Option<Termios>,
    /// The group that it was lent to.
    lent: Option<Pid>,
}

impl Terminal {
    /// `None`: there is none.
    pub(super) fn find() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self {
            settings: tcgetattr(&tty).ok(),
            tty,
            lent: None,
        })
    }

    /// Whether this process is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| own_group() == Some(group))
    }

    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Makes `group` the foreground job, if this process is it.
    pub(super) fn lend(&mut self, group: Pid) {
        if self.is_ours() && self.set(group) {
            self.lent = Some(group);
        }
    }

    /// Takes it back, if it is still with the group that it was lent to. Whether it was.
    pub(super) fn take_back(&mut self) -> bool {
        let lent = self.lent.take();
        let is_there = lent.is_some() && tcgetpgrp(&self.tty).ok() == lent;
        if is_there && let Some(own) = own_group() {
            self.set(own);
        }
        is_there
    }

    /// After a command that was killed: it may have left it in a state in which nobody can type.
    pub(super) fn restore(&self) {
        if self.is_ours()
            && let Some(settings) = &self.settings
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, settings);
        }
    }

    fn set(&self, group: Pid) -> bool {
        // Who is in the background would be stopped for it.
        let stop = SigSet::from(Signal::SIGTTOU);
        let _ = stop.thread_block();
        let set = tcsetpgrp(&self.tty, group);
        let _ = stop.thread_unblock();
        set.is_ok()
    }
}

/// Whether the command can have the terminal from the start: in a pipe, another program of the same
/// job may want it, and then the command gets it when it asks.
pub(super) fn is_alone() -> bool {
    let is_pipe = |fd: std::os::fd::BorrowedFd<'_>| {
        let stat = rustix::fs::fstat(fd);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
    };
    !is_pipe(std::io::stdin().as_fd()) && !is_pipe(std::io::stdout().as_fd())
}

/// Whether standard input is a terminal.
pub(super) fn is_read() -> bool {
    std::io::stdin().is_terminal()
}

/// The group of this process. `None`: its number is that of another PID namespace, as in a container
/// that was started without a session of its own, and it cannot be given the terminal here.
pub(super) fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

/// Whether a key of the terminal sent it, and who started this process is there to learn of it: a
/// shell that has the same terminal.
pub(super) fn is_key(signal: rustix::process::Signal) -> bool {
    use rustix::process::Signal;
    let leads = getsid(None) == Ok(getpid());
    matches!(signal, Signal::INT | Signal::QUIT) && !leads && is_parents_session()
}

/// Whether nobody would continue this process if it stopped: who started it is of another session,
/// or the session's leader is of this group, and would be stopped, too.
pub(super) fn is_orphan() -> bool {
    // Of another PID namespace, every number is 0. Whose parent and session both are, has that session
    // from that parent, or it would have made its own, with a number. A group without one may be the
    // leader's.
    !is_parents_session() || getsid(None) == Ok(getpgrp())
}

fn is_parents_session() -> bool {
    let parent = Some(getppid()).filter(|parent| parent.as_raw() != 0);
    let session = parent.and_then(|parent| getsid(Some(parent)).ok());
    session.is_some() && session == getsid(None).ok()
}
