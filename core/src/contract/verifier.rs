//! How a store asks the keepers that use it to verify their leases.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use crate::sync::lock;

/// Asks a keeper to verify its leases at once. A backend calls it when it notices that leases may have ended.
///
/// A backend receives it in [`Backend::watch_leases`](crate::Backend::watch_leases). Clones ask the
/// same keeper. It does not keep the keeper alive.
#[derive(Clone)]
pub struct LeaseVerifier {
    keeper: Weak<dyn Any + Send + Sync>,
    verify: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl LeaseVerifier {
    /// Makes the verifier of a keeper. `verify` does not keep `keeper` alive, and returns false when it has ended.
    pub(crate) fn new(
        keeper: Weak<dyn Any + Send + Sync>,
        verify: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            keeper,
            verify: Arc::new(verify),
        }
    }

    /// Makes the keeper renew all its leases now, in batches, on its own threads. A lease that the
    /// store no longer has is lost as soon as the store says so. A fixed lease is renewed, too, but
    /// only for the time that it has left.
    ///
    /// This returns at once. Call it from any thread, as often as there is a reason. Calls that come close
    /// together cost one round. The first call is served at once. The next round follows after twice the time that
    /// the last one took, but not before 50 ms and not later than 1 s. Returns false if the keeper has ended:
    /// forget the verifier then.
    pub fn verify(&self) -> bool {
        (self.verify)()
    }

    /// Returns whether the keeper has ended.
    pub fn is_ended(&self) -> bool {
        self.keeper.strong_count() == 0
    }
}

impl fmt::Debug for LeaseVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseVerifier").finish_non_exhaustive()
    }
}

/// The keepers that use one store, as a backend keeps them.
#[derive(Debug, Default)]
pub struct LeaseVerifiers(Mutex<Vec<LeaseVerifier>>);

impl LeaseVerifiers {
    /// Adds what a backend got by [`Backend::watch_leases`](crate::Backend::watch_leases), and forgets the
    /// keepers that have ended.
    pub fn add(&self, verifier: LeaseVerifier) {
        let mut all = lock(&self.0);
        all.retain(|keeper| !keeper.is_ended());
        all.push(verifier);
    }

    /// Makes each keeper verify all its leases. Returns at once.
    pub fn verify_all(&self) {
        // A keeper may end here. What ends with it must not wait for this mutex.
        let all = lock(&self.0).clone();
        for keeper in all {
            keeper.verify();
        }
    }

    /// Returns whether there is no keeper, or all have ended.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).iter().all(LeaseVerifier::is_ended)
    }
}
