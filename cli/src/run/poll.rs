//! Waiting for files and for points in time.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use lockkeeper::HostInstant;
#[cfg(not(target_os = "linux"))]
use lockkeeper::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// How often `run` polls for what no signal tells it: the end of a process of the command's group that
/// is not a child of `run`, or a claim of the watchdog.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns whether a file can be read from, or has ended, within `limit`.
pub(super) fn is_readable(file: &impl AsFd, limit: Duration) -> bool {
    let limit = timespec(limit);
    poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Returns whether the other end of a connection is open.
pub(super) fn is_open(connection: &impl AsFd) -> bool {
    // The kernel reports a closed end without a flag for it.
    let mut ends = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut ends, Some(&timespec(Duration::ZERO))) == Ok(0)
}

/// A time to wake at, on the host's clock.
///
/// Time-outs of `poll` do not advance while the host is suspended. A timer of CLOCK_BOOTTIME does, and
/// if it is due when the host resumes, it fires at once; see timerfd_create(2).
pub(super) struct Timer {
    #[cfg(target_os = "linux")]
    timer: OwnedFd,
}

#[cfg(target_os = "linux")]
impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer })
    }

    /// Waits until one of the files can be read from, until a signal is handled, or until `time`.
    pub(super) fn wait_until(&self, time: HostInstant, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        // Zero would disarm the timer.
        let nanos = time.as_nanos().max(1);
        let spec = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(Duration::from_nanos(nanos)),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        let mut files = polled(files);
        files.push(PollFd::new(&self.timer, PollFlags::IN));
        ended(poll(&mut files, None))
    }
}

/// Elsewhere `poll` waits at most for `MAX_TIMEOUT`, and the caller calls it again.
#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(super) fn wait_until(&self, time: HostInstant, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        const MAX_TIMEOUT: Duration = Duration::from_secs(1);
        let left = time.saturating_since(SystemClock.now());
        let limit = timespec(left.min(MAX_TIMEOUT));
        ended(poll(&mut polled(files), Some(&limit)))
    }
}

fn polled<'a>(files: &'a [BorrowedFd<'_>]) -> Vec<PollFd<'a>> {
    let polled = files.iter().map(|file| PollFd::new(file, PollFlags::IN));
    polled.collect()
}

/// Ignores the error of a signal that was handled. The caller checks which file can be read from.
fn ended(polled: rustix::io::Result<usize>) -> io::Result<()> {
    match polled {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: span.as_secs().cast_signed(),
        tv_nsec: span.subsec_nanos().into(),
    }
}
