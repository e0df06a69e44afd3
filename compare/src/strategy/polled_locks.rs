//! A named lock for each permit. A waiting thread tries them one after the other, repeatedly.
//!
//! A lock is free when its session ends, so a process that dies leaves its permits to the others at once.
//! But a session waits for one name only, so threads poll. Each thread keeps a connection busy and sends a
//! statement for every permit that it tries. It gets in when it happens to try at the right time.

use std::time::Duration;

use lockkeeper::Usage;

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;

/// Between two rounds of attempts, as the spin locks have it.
const PACE: Duration = Duration::from_millis(100);

pub(super) struct PolledLocks {
    lock: Box<dyn Lock>,
    cancel: Cancellation,
}

impl PolledLocks {
    pub(super) fn new(lock: Box<dyn Lock>, cancel: &Cancellation) -> Self {
        let cancel = cancel.clone();
        Self { lock, cancel }
    }
}

impl Lock for PolledLocks {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        // An exclusive lock is one permit.
        let limit = request.mode.limit().unwrap_or(1);
        let attempt = |_| {
            for permit in 0..limit {
                let name = format!("{name}/{permit}");
                if let Some(held) = self.lock.acquire(&name, request.without_wait())? {
                    return Ok(Some(held));
                }
            }
            Ok(None)
        };
        self.cancel.retry(request.wait, || PACE, attempt)
    }

    fn usage(&self) -> Option<Usage> {
        self.lock.usage()
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}
