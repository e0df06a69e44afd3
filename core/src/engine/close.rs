//! Closing a keeper: the waits of all its threads end, and its guards stay. The end of a keeper waits as its close does.
//!
//! Guards stay: a thread finishes its work under the lock, and a close that waited for it could wait for its own
//! caller.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::sync::{lock, wait};

use super::backoff::{Limits, backoff};
use super::{ATTEMPT_LIMIT, Engine};

/// Whether a keeper was closed, and the threads that wait until its acquisitions or its releases have ended.
pub(super) struct Closing {
    /// The token of a request whose caller gives none, and the parent of one that a caller gives.
    pub(super) token: CancelToken,
    /// Cancelled at the keeper's end: from then on no release is repeated.
    pub(super) ended: CancelToken,
    /// The number of threads that wait for `changed`. Notifying without one would cost a system call.
    waiting: AtomicUsize,
    /// Locked to wait for `changed`; before a shard of the queue.
    lock: Mutex<()>,
    /// Notified when an acquisition or a release has ended.
    changed: Condvar,
}

impl Closing {
    pub(super) fn new() -> Self {
        Self {
            token: CancelToken::new(),
            ended: CancelToken::new(),
            waiting: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Notifies the threads that wait for the end of an acquisition or a release.
    pub(super) fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let _locked = lock(&self.lock);
            self.changed.notify_all();
        }
    }

    /// Waits until `is_idle`, at most for `limit`. Each change after which it may be is [notified](Self::notify).
    pub(super) fn wait_until(&self, is_idle: impl Fn() -> bool, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut locked = lock(&self.lock);
        while !is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            locked = wait(&self.changed, locked, Some(left));
        }
        drop(locked);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
    /// Ends all acquisitions with [`ErrorKind::Cancelled`]. Waits until no acquisition and no release is under way,
    /// at most as long as a request takes.
    pub(crate) fn close(self: &Arc<Self>) {
        // Wakes the threads that wait in the store; those in the queue are not registered.
        self.closing.token.cancel();
        self.queue.unpark_all();
        self.collect_owed();
        let is_settled = || self.parts.iter().all(|part| part.requests.is_settled());
        self.closing
            .wait_until(|| self.queue.is_idle() && is_settled(), ATTEMPT_LIMIT);
    }

    /// Returns the number of releases that no caller waits for.
    pub(crate) fn pending_releases(&self) -> usize {
        self.parts.releases()
    }

    /// Waits until no release is left that no caller waits for, at most for `limit`.
    pub(super) fn wait_for_releases(&self, limit: Duration) {
        self.closing
            .wait_until(|| self.parts.releases() == 0, limit);
    }

    /// Returns a token that is cancelled when the keeper is closed, and with `own`.
    pub(crate) fn ending(&self, own: Option<&CancelToken>) -> CancelToken {
        match own {
            Some(own) => own.with_parent(&self.closing.token),
            None => self.closing.token.clone(),
        }
    }

    /// Pauses after this many failures in a row, or until a cancel.
    pub(crate) fn back_off(&self, cancel: &CancelToken, failures: u32) {
        let limits = Limits {
            clock: &*self.clock,
            until: HostInstant::NEVER,
            cancel: Some(cancel),
        };
        limits.pause(backoff(failures.saturating_add(1)));
    }

    /// Returns the error of an acquisition that its token or the keeper's end has cancelled.
    pub(super) fn cancelled(&self) -> Error {
        let text = match self.closing.token.is_cancelled() {
            true => {
                "the keeper was closed, so it grants no more locks; open another keeper if locks are still needed"
            }
            false => "the wait for the lock was cancelled",
        };
        Error::new(ErrorKind::Cancelled, text)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn close_waits_until_all_has_ended_and_is_notified_of_it() {
        let closing = Arc::new(Closing::new());
        // It locks nothing, and returns at once.
        let locked = lock(&closing.lock);
        closing.notify();
        drop(locked);
        closing.wait_until(|| false, Duration::ZERO);

        let is_idle = Arc::new(AtomicBool::new(false));
        let (waits, is_idle_for_it) = (Arc::clone(&closing), Arc::clone(&is_idle));
        let (sender, events) = channel();
        thread::spawn(move || {
            let asked = || {
                let is_idle = is_idle_for_it.load(Ordering::SeqCst);
                sender.send(is_idle).unwrap();
                is_idle
            };
            waits.wait_until(asked, 100 * LIMIT);
        });
        assert_eq!(events.recv_timeout(LIMIT), Ok(false));
        is_idle.store(true, Ordering::SeqCst);
        // It locks what the other thread releases when it waits.
        closing.notify();
        assert_eq!(events.recv_timeout(LIMIT), Ok(true), "it is notified");
        let ended = events.recv_timeout(LIMIT);
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
    }
}
