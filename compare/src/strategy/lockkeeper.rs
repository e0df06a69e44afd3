//! This library: one keeper for a program.
//!
//! The program's threads queue inside the keeper, and only the first one sends requests to the store.
//! Leases are renewed, and every grant has a token by which the data can refuse a late write. For a
//! thread that acquires again what it holds there is a keeper of its own type.

use std::time::Duration;

use lockkeeper::{
    AcquireOptions, CancelToken, Config, FencingToken, LockGuard, LockKeeper, LostSignal,
    ReentrantKeeper, Usage, open_config,
};

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;

pub(crate) struct Lockkeeper {
    keeper: LockKeeper,
    reentrant: ReentrantKeeper,
    cancel: CancelToken,
}

impl Lockkeeper {
    pub(crate) fn open(config: &Config, cancel: &Cancellation) -> Result<Self, Error> {
        let keeper = open_config(config)?;
        Ok(Self {
            reentrant: ReentrantKeeper::new(keeper.clone()),
            keeper,
            cancel: cancel.token().clone(),
        })
    }

    fn options(&self, request: LockRequest) -> AcquireOptions {
        AcquireOptions::new()
            .mode(request.mode)
            .wait(request.wait)
            .lease(request.lease)
            .cancel(&self.cancel)
    }

    /// Acquires a lock that is not reentrant, which any thread may release.
    pub(super) fn acquire_guard(
        &self,
        name: &str,
        request: LockRequest,
    ) -> Result<Option<LockGuard>, Error> {
        Ok(self.keeper.acquire(name, &self.options(request))?)
    }

    /// Acquires the locks of all names in one call.
    pub(super) fn acquire_together(
        &self,
        names: &[String],
        request: LockRequest,
    ) -> Result<Option<Held>, Error> {
        let guards = self.keeper.acquire_all(names, &self.options(request))?;
        Ok(guards.map(|guards| Held::new(move || Ok(guards.release().map(drop)?))))
    }
}

impl Lock for Lockkeeper {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        Ok(if request.reentrant {
            let guard = self.reentrant.acquire(name, &self.options(request))?;
            guard.map(|guard| held(guard.token(), guard.lost_signal(), move || guard.finish()))
        } else {
            let guard = self.acquire_guard(name, request)?;
            guard.map(|guard| {
                held(guard.token(), guard.lost_signal(), move || {
                    guard.release().map(drop)
                })
            })
        })
    }

    fn usage(&self) -> Option<Usage> {
        self.keeper.usage()
    }

    fn min_ttl(&self) -> Duration {
        self.keeper.capabilities().min_ttl()
    }
}

/// Makes a held lock of a guard; `lost` shows whether it was lost before its release.
fn held(
    token: FencingToken,
    lost: LostSignal,
    release: impl FnOnce() -> Result<(), lockkeeper::Error> + 'static,
) -> Held {
    let mut held = Held::new(move || Ok(release()?));
    held.token = Some(token);
    held.lost = Some(lost);
    held
}
