//! Waiting that ends when the caller cancels the comparison.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use lockkeeper::{CancelRegistration, CancelToken};

use crate::error::Error;

/// Opens once, for all threads that wait for it and for all that come later.
pub(crate) struct Latch {
    /// Dropped to open the latch.
    closed: Mutex<Option<Sender<Infallible>>>,
    opened: Receiver<Infallible>,
}

impl Latch {
    pub(crate) fn new() -> Self {
        let (closed, opened) = bounded(0);
        Self {
            closed: Mutex::new(Some(closed)),
            opened,
        }
    }

    pub(crate) fn open(&self) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.take();
    }

    pub(crate) fn wait(&self) {
        // The only result there can be: the sender is gone.
        let _ = self.opened.recv();
    }
}

/// The caller's cancel token, which ends the waits of all threads at once.
#[derive(Clone)]
pub(crate) struct Cancellation {
    token: CancelToken,
    cancelled: Arc<Latch>,
    _registration: Arc<CancelRegistration>,
}

impl Cancellation {
    pub(crate) fn new(token: &CancelToken) -> Self {
        let cancelled = Arc::new(Latch::new());
        let on_cancel = Arc::clone(&cancelled);
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
        latch.wait();
    }
}
