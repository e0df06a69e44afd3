//! Waiting that ends when the caller cancels the comparison.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use lockkeeper::{CancelRegistration, CancelToken};
use parking_lot::Mutex;

use crate::error::Error;

/// Opens once, for all threads that wait for it and for all that come later.
#[derive(Clone)]
pub(crate) struct Latch {
    /// Dropped to open the latch.
    closed: Arc<Mutex<Option<Sender<Infallible>>>>,
    opened: Receiver<Infallible>,
}

impl Latch {
    pub(crate) fn new() -> Self {
        let (closed, opened) = bounded(0);
        let closed = Arc::new(Mutex::new(Some(closed)));
        Self { closed, opened }
    }

    pub(crate) fn open(&self) {
        self.closed.lock().take();
    }
}

/// The caller's cancel token, which ends the waits of all threads at once.
#[derive(Clone)]
pub(crate) struct Cancellation {
    token: CancelToken,
    cancelled: Latch,
    _registration: Arc<CancelRegistration>,
}

impl Cancellation {
    pub(crate) fn new(token: &CancelToken) -> Self {
        let cancelled = Latch::new();
        let on_cancel = cancelled.clone();
        Self {
            token: token.clone(),
            cancelled,
            _registration: Arc::new(token.on_cancel(move || on_cancel.open())),
        }
    }

    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    /// Fails with [`Error::Interrupted`] if the comparison is cancelled.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.token.is_cancelled() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Sleeps; fails with [`Error::Interrupted`] as soon as the comparison is cancelled.
    pub(crate) fn sleep(&self, duration: Duration) -> Result<(), Error> {
        let _ = self.cancelled.opened.recv_timeout(duration);
        self.check()
    }

    /// Waits for a latch and returns whether it opened within `limit`; fails with
    /// [`Error::Interrupted`] as soon as the comparison is cancelled.
    pub(crate) fn wait(&self, latch: &Latch, limit: Duration) -> Result<bool, Error> {
        select! {
            recv(latch.opened) -> _ => Ok(true),
            recv(self.cancelled.opened) -> _ => Err(Error::Interrupted),
            default(limit) => Ok(false),
        }
    }

    /// Repeats `attempt`, which gets the rest of `wait`, until it returns something or the wait is
    /// over, and sleeps for `pace` in between. Without a wait there is one attempt.
    pub(crate) fn retry<T>(
        &self,
        wait: Duration,
        pace: impl Fn() -> Duration,
        mut attempt: impl FnMut(Duration) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let started = Instant::now();
        let mut left = wait;
        loop {
            let result = attempt(left)?;
            left = wait.saturating_sub(started.elapsed());
            if result.is_some() || left.is_zero() {
                return Ok(result);
            }
            self.sleep(pace().min(left))?;
            left = wait.saturating_sub(started.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelling_ends_every_wait() {
        let token = CancelToken::new();
        let (cancel, latch) = (Cancellation::new(&token), Latch::new());
        assert!(!cancel.wait(&latch, Duration::ZERO).unwrap());
        cancel.sleep(Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let slept = scope.spawn(|| cancel.sleep(Duration::MAX));
            let waited = scope.spawn(|| cancel.wait(&latch, Duration::MAX));
            token.cancel();
            assert!(matches!(slept.join(), Ok(Err(Error::Interrupted))));
            assert!(matches!(waited.join(), Ok(Err(Error::Interrupted))));
        });
    }

    #[test]
    fn open_latch_lets_waiters_and_latecomers_through() {
        let (cancel, latch) = (Cancellation::new(&CancelToken::new()), Latch::new());
        std::thread::scope(|scope| {
            let waited = scope.spawn(|| cancel.wait(&latch, Duration::MAX));
            latch.open();
            assert!(matches!(waited.join(), Ok(Ok(true))));
        });
        assert!(cancel.wait(&latch, Duration::ZERO).unwrap());
    }
}
