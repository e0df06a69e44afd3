//! Asking a store again after a lost reply, and after a failure that may pass.
//!
//! A provider makes one attempt a call. Whether another attempt follows, and what the last error
//! means after a lost reply, is decided here for every store.

use std::time::Duration;

use crate::cancel::CancelToken;
use crate::clock::{Clock, HostInstant};
use crate::error::{Error, ErrorKind};
use crate::sync::{Arc, Condvar, Mutex, lock, wait};

/// The back-off before the second retry; it doubles with every further one. The first retry follows
/// at once: most lost replies are a connection that the server or the network has closed.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(250);

/// The retries of one operation, until a deadline or until it is cancelled.
pub(super) struct Retry<'a> {
    clock: &'a dyn Clock,
    until: HostInstant,
    cancel: Option<&'a CancelToken>,
    retries: u32,
    /// Whether the one attempt behind the deadline was made.
    is_past_deadline: bool,
    lost_reply: Option<Error>,
}

impl<'a> Retry<'a> {
    pub(super) fn new(
        clock: &'a dyn Clock,
        until: HostInstant,
        cancel: Option<&'a CancelToken>,
    ) -> Self {
        Self {
            clock,
            until,
            cancel,
            retries: 0,
            is_past_deadline: false,
            lost_reply: None,
        }
    }

    /// Returns the error of the first attempt whose reply was lost.
    pub(super) fn lost_reply(&self) -> Option<&Error> {
        self.lost_reply.as_ref()
    }

    /// Backs off before the next attempt. `was_busy` says that this wait has seen a holder: the store
    /// may be back soon, and one attempt at the deadline tells whether the lock is still held.
    ///
    /// # Errors
    /// The error to end with, when there is no next attempt. After a lost reply nothing may have been
    /// granted or released for sure, so an unreachable store is [`ErrorKind::Unknown`] then.
    pub(super) fn after(&mut self, error: Error, was_busy: bool) -> Result<(), Error> {
        let (may_pass, asks_at_deadline) = match error.kind() {
            ErrorKind::Unknown => {
                self.lost_reply.get_or_insert_with(|| error.clone());
                (true, false)
            }
            ErrorKind::Unavailable => (was_busy || self.lost_reply.is_some(), was_busy),
            _ => (false, false),
        };
        if may_pass && self.back_off(asks_at_deadline) {
            return Ok(());
        }
        Err(match error.kind() {
            ErrorKind::Unavailable | ErrorKind::PoolExhausted if self.lost_reply.is_some() => {
                Error::new(
                    ErrorKind::Unknown,
                    "the store did not reply, and could not be asked again; what it may have granted expires with its ttl",
                )
                .with_source(error)
            }
            _ => error,
        })
    }

    /// Waits before the next attempt. False: no time is left, or the operation was cancelled.
    fn back_off(&mut self, asks_at_deadline: bool) -> bool {
        let left = self.until.saturating_since(self.clock.now());
        if !left.is_zero()
            && !self.is_cancelled()
            && let Some(doublings) = self.retries.checked_sub(1)
        {
            let longest = FIRST_BACKOFF
                .saturating_mul(1 << doublings.min(10))
                .min(MAX_BACKOFF);
            self.pause(longest.mul_f64(jitter()).min(left));
        }
        self.retries = self.retries.saturating_add(1);
        if self.is_cancelled() {
            return false;
        }
        self.clock.now() < self.until
            || (asks_at_deadline && !std::mem::replace(&mut self.is_past_deadline, true))
    }

    fn pause(&self, time: Duration) {
        // Not `thread::park`, which would take an `unpark` that the caller's program waits for.
        let parker = Arc::new((Mutex::new(()), Condvar::new()));
        let _wake = self.cancel.map(|cancel| {
            let parker = Arc::clone(&parker);
            cancel.on_cancel(move || {
                drop(lock(&parker.0));
                parker.1.notify_one();
            })
        });
        let guard = lock(&parker.0);
        if !self.is_cancelled() {
            drop(wait(&parker.1, guard, Some(time)));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }
}

/// Returns a factor from 0.5 to 1: processes that lost the same server do not come back together.
fn jitter() -> f64 {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}
