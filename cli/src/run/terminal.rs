//! The terminal, and whose it is.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Pid, getpgrp, getppid, getsid};
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
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
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

    /// Takes it back, if it is still with the group that it was lent to.
    pub(super) fn take_back(&mut self) {
        if let Some(group) = self.lent.take()
            && tcgetpgrp(&self.tty).is_ok_and(|now| now == group)
        {
            self.set(getpgrp());
        }
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

/// Whether nobody would continue this process if it stopped: who started it is of another session,
/// or the session's leader is of this group, and would be stopped, too.
pub(super) fn is_orphan() -> bool {
    let session = getsid(None).ok();
    let parent = getppid().and_then(|parent| getsid(Some(parent)).ok());
    parent.is_none() || parent != session || session == Some(getpgrp())
}
