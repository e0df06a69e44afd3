//! This library: one keeper for a program.
//!
//! The program's threads queue inside the keeper and only the first one asks the store. Leases are
//! renewed, and every grant has a token by which the data can refuse a late write. For a thread that
//! acquires again what it holds there is a keeper of its own type.

use std::time::Duration;

use lockkeeper::{
    AcquireOptions, CancelToken, Config, FencingToken, LockGuard, LockKeeper, ReentrantGuard,
    ReentrantKeeper, Usage, open_config,
};

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;

/// One keeper for a program.
pub(crate) struct Lockkeeper {
    keeper: LockKeeper,
    reentrant: ReentrantKeeper,
    cancel: CancelToken,
}

impl Lockkeeper {
    /// Opens the store.
    pub(crate) fn open(config: &Config, cancel: &Cancellation) -> Result<Self, Error> {
        let keeper = open_config(config)?;
        Ok(Self {
            reentrant: ReentrantKeeper::new(keeper.clone()),
            keeper,
            cancel: cancel.token().clone(),
        })
    }
}

impl Lock for Lockkeeper {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let options = AcquireOptions::new()
            .wait(request.wait)
            .lease(request.lease)
            .cancel(&self.cancel);
        Ok(if request.reentrant {
            let guard = self.reentrant.acquire(name, &options)?;
            guard.map(|guard| Box::new(guard) as Box<dyn Held>)
        } else {
            let guard = self.keeper.acquire(name, &options)?;
            guard.map(|guard| Box::new(guard) as Box<dyn Held>)
        })
    }

    fn usage(&self) -> Option<Usage> {
        self.keeper.usage()
    }

    fn min_ttl(&self) -> Duration {
        self.keeper.capabilities().min_ttl()
    }
}

impl Held for LockGuard {
    fn token(&self) -> Option<FencingToken> {
        Some(LockGuard::token(self))
    }

    fn lost_signal(&self) -> Box<dyn Fn() -> bool + Send> {
        let signal = LockGuard::lost_signal(self);
        Box::new(move || signal.is_lost())
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        // `lost_signal` shows whether the lock was lost before.
        LockGuard::release(*self)?;
        Ok(())
    }
}

impl Held for ReentrantGuard {
    fn token(&self) -> Option<FencingToken> {
        Some(LockGuard::token(self))
    }

    fn lost_signal(&self) -> Box<dyn Fn() -> bool + Send> {
        <dyn Held>::lost_signal(&**self)
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        self.finish()?;
        Ok(())
    }
}
