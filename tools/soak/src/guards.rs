//! What a worker acquires in one call: locks of one or several names, or a permit.

use lockkeeper::{
    AcquireOptions, Error, FencingToken, LockGuard, LockGuards, LockKeeper, Permit, Released,
};

use crate::plan::Plan;

/// What one call was granted.
pub(crate) enum Guards {
    One(LockGuard),
    Several(LockGuards),
    Permit(Permit),
}

impl Guards {
    /// Acquires the locks of these names, or a permit of the one name that is a semaphore. `None` if it is busy.
    pub(crate) fn acquire(
        keeper: &LockKeeper,
        names: &[u32],
        options: &AcquireOptions,
    ) -> Result<Option<Self>, Error> {
        if let [name] = names {
            let text = Plan::name(*name);
            return Ok(match Plan::permits(*name) {
                None => keeper.acquire(text, options)?.map(Self::One),
                Some(permits) => {
                    let semaphore = keeper.semaphore(text, permits)?;
                    semaphore.acquire_with(options)?.map(Self::Permit)
                }
            });
        }
        let names = names.iter().map(|name| Plan::name(*name));
        Ok(keeper.acquire_all(names, options)?.map(Self::Several))
    }

    /// Returns the token and the slot of the grant of a name.
    pub(crate) fn grant(&self, name: u32) -> (u64, u32) {
        match self {
            Self::One(guard) => (guard.token().get(), 0),
            Self::Permit(permit) => (permit.token().get(), permit.slot()),
            Self::Several(guards) => {
                let token = guards.token(Plan::name(name));
                (token.map_or(0, FencingToken::get), 0)
            }
        }
    }

    /// Returns whether all are held.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::One(guard) => guard.is_held(),
            Self::Several(guards) => guards.is_held(),
            Self::Permit(permit) => permit.is_held(),
        }
    }

    /// Renews all.
    pub(crate) fn renew(&self) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.renew(),
            Self::Several(guards) => guards.renew(),
            Self::Permit(permit) => permit.renew(),
        }
    }

    /// Releases all.
    pub(crate) fn release(self) -> Result<Released, Error> {
        match self {
            Self::One(guard) => guard.release(),
            Self::Several(guards) => guards.release(),
            Self::Permit(permit) => permit.release(),
        }
    }
}
