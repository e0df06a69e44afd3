//! The same `SET NX PX` with an owner, tried again every 100 ms: the spin lock of the Lettuce
//! write-ups.
//!
//! Every waiter sends ten commands a second, whether the lock is free or not. It notices up to 100 ms
//! late that the lock is free, and the lock goes to the waiter that happens to try next.

use std::time::Duration;

use super::lock::{Held, Lock, LockRequest};
use super::setnx_once::SetnxOnce;
use crate::error::Error;

/// Between two attempts, as in the write-up. Others have 60 or 80 ms.
const PACE: Duration = Duration::from_millis(100);

/// [`SetnxOnce`], repeated until it succeeds.
pub(super) struct SetnxSpin(pub(super) SetnxOnce);

impl Lock for SetnxSpin {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let (SetnxSpin(once), wait) = (self, request.wait);
        let attempt = |_| once.acquire(name, request);
        once.0.cancel.retry(wait, || PACE, attempt)
    }
}
