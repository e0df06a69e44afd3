//! Waiting for files and for points in time.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use lockkeeper::clock::HostInstant;
#[cfg(not(target_os = "linux"))]
use lockkeeper::clock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// How often `run` polls for what no signal reports. That is a claim of the watchdog, or the end of a
/// process in the command's group that is not a child of `run`.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns whether a file can be read from, or has ended, within `limit`.
pub(super) fn is_readable(file: &impl AsFd, limit: Duration) -> bool {
    wait_for(&[file.as_fd()], PollFlags::IN, Some(limit)).is_ok_and(|ready| ready > 0)
}

/// Returns whether the other end of a connection is open.
pub(super) fn is_open(connection: &impl AsFd) -> bool {
    // The kernel reports a closed end without a flag for it.
    let ended = wait_for(
        &[connection.as_fd()],
        PollFlags::empty(),
        Some(Duration::ZERO),
    );
    matches!(ended, Ok(0))
}

/// Waits until `limit` for one of the files, and returns how many are ready.
fn wait_for(
    files: &[BorrowedFd<'_>],
    flags: PollFlags,
    limit: Option<Duration>,
) -> rustix::io::Result<usize> {
    let files = files.iter().map(|file| PollFd::new(file, flags));
    let limit = limit.map(timespec);
    poll(&mut files.collect::<Vec<_>>(), limit.as_ref())
}

/// A time to wake at, on the host's clock.
///
/// Time-outs of `poll` do not advance while the host is suspended. A timer of CLOCK_BOOTTIME does, and
/// if it is due when the host resumes, it fires at once; see timerfd_create(2). Other systems have no
/// such timer: there a wait ends after a second, and the caller waits again.
pub(super) struct Timer {
    #[cfg(target_os = "linux")]
    timer: OwnedFd,
}

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(target_os = "linux")]
            timer: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?,
        })
    }

    /// Waits until one of the files can be read from, until a signal is handled, or until `time`.
    pub(super) fn wait_until(&self, time: HostInstant, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        let (files, limit) = {
            let spec = Itimerspec {
                it_interval: timespec(Duration::ZERO),
                // Zero would disarm the timer.
                it_value: timespec(Duration::from_nanos(time.as_nanos().max(1))),
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
            (&[files, &[self.timer.as_fd()]].concat(), None)
        };
        #[cfg(not(target_os = "linux"))]
        let limit = Some(
            time.saturating_since(SystemClock.now())
                .min(Duration::from_secs(1)),
        );
        match wait_for(files, PollFlags::IN, limit) {
            // The caller checks which file can be read from.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: span.as_secs().cast_signed(),
        tv_nsec: span.subsec_nanos().into(),
    }
}
