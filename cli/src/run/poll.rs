//! Waiting for files and for points in time.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use lockkeeper::{Clock, Moment, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The longest time-out of `poll`, which does not advance while the host is suspended.
const MAX_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether a file can be read from, or has ended, within `limit`.
pub(super) fn is_readable(file: &impl AsFd, limit: Duration) -> bool {
    let limit = timespec(limit);
    poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Returns whether the other end of a connection is open.
pub(super) fn is_open(connection: &impl AsFd) -> bool {
    // A closed end is reported without being asked for.
    let mut ends = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut ends, Some(&timespec(Duration::ZERO))) == Ok(0)
}

/// Waits until one of the files can be read from, until a signal is handled, or until `time`, and at
/// most for a second.
pub(super) fn wait_until(time: Moment, files: &[BorrowedFd<'_>]) {
    let mut files: Vec<_> = files
        .iter()
        .map(|file| PollFd::new(file, PollFlags::IN))
        .collect();
    let left = time.saturating_since(SystemClock.now());
    // The caller looks for itself what has happened.
    let _ = poll(&mut files, Some(&timespec(left.min(MAX_TIMEOUT))));
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: span.as_secs().cast_signed(),
        tv_nsec: span.subsec_nanos().into(),
    }
}
