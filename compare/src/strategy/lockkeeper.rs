//! This library: one keeper for a program. Its threads queue inside it and only the first asks
//! the store, leases are renewed, and every grant brings a token with which a late write can be
//! told from a good one. Where a thread is to have again what it holds, there is a type for that.

use std::time::Duration;

use lockkeeper::{
    AcquireOptions, CancelToken, Config, FencingToken, LockGuard, LockKeeper, ReentrantGuard,
    ReentrantKeeper, Usage, open_config,
};

use super::lock::{Held, Lock, Terms};
use crate::error::Failure;

/// One keeper, as a program has it.
#[derive(Debug)]
pub(crate) struct Lockkeeper {
    keeper: LockKeeper,
    reentrant: ReentrantKeeper,
    stop: CancelToken,
}

impl Lockkeeper {
    /// Opens the store.
    pub(crate) fn open(config: &Config, stop: &CancelToken) -> Result<Self, Failure> {
        let keeper = open_config(config)?;
        Ok(Self {
            reentrant: ReentrantKeeper::new(keeper.clone()),
            keeper,
            stop: stop.clone(),
        })
    }
}

impl Lock for Lockkeeper {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let options = AcquireOptions::new()
            .wait(terms.wait)
            .lease(terms.lease)
            .cancel(&self.stop);
        Ok(if terms.again {
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

    fn least_ttl(&self) -> Duration {
        self.keeper.capabilities().min_ttl()
    }
}

impl Held for LockGuard {
    fn token(&self) -> Option<FencingToken> {
        Some(LockGuard::token(self))
    }

    fn lost(&self) -> Box<dyn Fn() -> bool + Send> {
        let signal = LockGuard::lost(self);
        Box::new(move || signal.is_lost())
    }

    fn release(self: Box<Self>) -> Result<(), Failure> {
        // Whether it was lost before is what `lost` says; here it counts that it is over.
        LockGuard::release(*self)?;
        Ok(())
    }
}

impl Held for ReentrantGuard {
    fn token(&self) -> Option<FencingToken> {
        Some(LockGuard::token(self))
    }

    fn lost(&self) -> Box<dyn Fn() -> bool + Send> {
        let signal = LockGuard::lost(self);
        Box::new(move || signal.is_lost())
    }

    fn release(self: Box<Self>) -> Result<(), Failure> {
        self.finish()?;
        Ok(())
    }
}
