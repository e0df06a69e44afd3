//! The keepers of a store, which are told when leases may have ended.

use std::sync::Mutex;

use lockkeeper_core::LeaseVerifier;

use crate::lock;

/// The keepers of this process that use a store.
#[derive(Debug, Default)]
pub(crate) struct Keepers(Mutex<Vec<LeaseVerifier>>);

impl Keepers {
    /// Adds a keeper, and forgets those that have ended.
    pub(crate) fn add(&self, verifier: LeaseVerifier) {
        let mut all = lock(&self.0);
        all.retain(|keeper| !keeper.is_ended());
        all.push(verifier);
    }

    /// Has each keeper verify all its leases. Returns at once.
    pub(crate) fn verify(&self) {
        // A keeper may end here. What ends with it must not wait for this mutex.
        let all = lock(&self.0).clone();
        for keeper in all {
            keeper.verify();
        }
    }
}
