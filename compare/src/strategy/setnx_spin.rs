//! The same `SET NX PX` with an owner, tried again every 100 ms: the spin lock of the Lettuce
//! write-ups.
//!
//! Every waiter sends ten commands a second, whether the lock is free or not, and finds out up to
//! 100 ms late that it is; who gets it is whoever happens to ask next.

use std::time::Duration;

use lockkeeper::CancelToken;

use super::lock::{Held, Lock, Terms};
use super::redis::spin;
use super::setnx_once::SetnxOnce;
use crate::error::Failure;
use crate::store::redis::Door;

/// Between two attempts, as in the write-up. Others have 60 or 80.
const PACE: Duration = Duration::from_millis(100);

/// [`SetnxOnce`], again and again.
#[derive(Debug)]
pub(crate) struct SetnxSpin {
    once: SetnxOnce,
    stop: CancelToken,
}

impl SetnxSpin {
    /// Connects.
    pub(crate) fn open(door: &Door, stop: &CancelToken) -> Result<Self, Failure> {
        Ok(Self {
            once: SetnxOnce::open(door)?,
            stop: stop.clone(),
        })
    }
}

impl Lock for SetnxSpin {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        spin(terms, || PACE, &self.stop, || self.once.take(name, terms))
    }
}
