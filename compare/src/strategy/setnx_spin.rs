//! The same `SET NX PX` with an owner, tried again every 100 ms: the spin lock of the Lettuce
//! write-ups.
//!
//! Every waiter sends ten commands a second, whether the lock is free or not. It notices up to 100 ms
//! late that the lock is free, and the lock goes to the waiter that happens to ask next.

use std::time::Duration;

use super::lock::{Held, Lock, LockRequest};
use super::redis::spin;
use super::setnx_once::SetnxOnce;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// Between two attempts, as in the write-up. Others have 60 or 80 ms.
const PACE: Duration = Duration::from_millis(100);

/// [`SetnxOnce`], again and again.
pub(crate) struct SetnxSpin {
    once: SetnxOnce,
    cancel: Cancellation,
}

impl SetnxSpin {
    /// Connects.
    pub(crate) fn open(config: &RedisConfig, cancel: &Cancellation) -> Result<Self, Error> {
        Ok(Self {
            once: SetnxOnce::open(config)?,
            cancel: cancel.clone(),
        })
    }
}

impl Lock for SetnxSpin {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let attempt = || self.once.acquire(name, request);
        spin(request, || PACE, &self.cancel, attempt)
    }
}
