//! Shows operators the epochs of a store with the keeper's `epoch_offset`, as its tokens have them.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::LockProvider;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::token::offset_epoch;

use crate::contract::admin::{Admin, Finding, HeldName};

/// The interface of a store whose keeper has an `epoch_offset`.
#[derive(Clone, Debug)]
pub(crate) struct OffsetAdmin {
    provider: Arc<dyn LockProvider>,
    offset: Duration,
}

impl OffsetAdmin {
    /// Returns `None` if the store has no interface.
    pub(crate) fn new(provider: &Arc<dyn LockProvider>, offset: Duration) -> Option<Self> {
        provider.admin().is_some().then(|| Self {
            provider: Arc::clone(provider),
            offset,
        })
    }

    fn store(&self) -> Result<&dyn Admin, Error> {
        self.provider.admin().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "this store has no interface for operators",
            )
        })
    }

    fn moved(&self, mut held: HeldName) -> HeldName {
        held.epoch = held.epoch.map(|epoch| offset_epoch(epoch, self.offset));
        held
    }
}

impl Admin for OffsetAdmin {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let held = self.store()?.held(name, deadline)?.into_iter();
        Ok(held.map(|held| self.moved(held)).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let held = self.store()?.held_in_all_namespaces(deadline)?.into_iter();
        let moved = |(namespace, held)| (namespace, self.moved(held));
        Ok(held.map(moved).collect())
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        self.store()?.force_release(held, deadline)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        self.store()?.examine(deadline)
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        self.provider.admin().map_or(&[], Admin::cannot_tell)
    }
}
