//! The keepers of one provider, to be told that leases may have ended.

use lockkeeper_core::LeaseVerifier;
use parking_lot::Mutex;

/// The verifiers that a provider got by
/// [`Backend::watch_leases`](lockkeeper_core::Backend::watch_leases).
#[derive(Debug, Default)]
pub struct LeaseVerifiers(Mutex<Vec<LeaseVerifier>>);

impl LeaseVerifiers {
    /// Adds the verifier of a keeper.
    pub fn add(&self, verifier: LeaseVerifier) {
        self.0.lock().push(verifier);
    }

    /// Has each keeper verify all its leases, and forgets the keepers that have ended. Returns at once.
    pub fn verify_all(&self) {
        self.0.lock().retain(LeaseVerifier::verify);
    }
}
