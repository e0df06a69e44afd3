//! Verifying leases at once, where the backend or an answer after an outage gives a reason to doubt
//! them, instead of at their next renewal.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::HostInstant;

use super::Engine;
use super::background::BackgroundUse;
use super::backoff::random;

/// The longest pause between two renewals of one lease while the store cannot be reached. It bounds
/// how late the loss of all leases is noticed after a server that has lost them answers again.
const MAX_PROBE_PAUSE: Duration = Duration::from_millis(50);

/// Returns how long the first lease of a batch that got no answer waits for its next renewal: the
/// others are renewed as soon as it gets one.
pub(super) fn probe_pause(ttl: Duration) -> Duration {
    MAX_PROBE_PAUSE.min(ttl / 12).mul_f64(0.5 + random() / 2.0)
}

/// Whether leases may have ended without this process having been told.
#[derive(Default)]
pub(super) struct Doubts {
    /// How often all leases were doubted. An answer to a question that was asked before the last time
    /// proves nothing.
    raised: AtomicU64,
    /// Whether all leases are due to be verified.
    are_due: AtomicBool,
    /// Whether a lease could not be renewed because the store could not be reached. The next answer is
    /// reason to verify all leases: the server may be another one, or empty.
    is_unreachable: AtomicBool,
}

impl Doubts {
    /// Returns how often all leases were doubted, to be compared after an answer.
    pub(super) fn count(&self) -> u64 {
        self.raised.load(Ordering::SeqCst)
    }

    /// Returns whether all leases have to be verified now; true once.
    pub(super) fn take(&self) -> bool {
        self.are_due.load(Ordering::Relaxed) && self.are_due.swap(false, Ordering::SeqCst)
    }

    /// Records that a renewal could not reach the store.
    pub(super) fn unreachable(&self) {
        self.is_unreachable.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// Makes all leases due for a renewal.
    fn verify_leases(&self) {
        self.doubts.raised.fetch_add(1, Ordering::SeqCst);
        self.doubts.are_due.store(true, Ordering::SeqCst);
        self.timer.note(HostInstant::from_nanos(0));
    }

    /// Records that the store has answered, whatever it said.
    pub(super) fn answered(&self) {
        self.outage.answered();
        let is_unreachable = &self.doubts.is_unreachable;
        if is_unreachable.load(Ordering::Relaxed) && is_unreachable.swap(false, Ordering::SeqCst) {
            self.verify_leases();
        }
    }
}

/// Has a keeper verify its leases at once: what a backend does that notices that leases may have
/// ended.
///
/// A backend gets it by [`Backend::watch_leases`](crate::Backend::watch_leases). Clones are for the
/// same keeper. It does not keep the keeper alive.
#[derive(Clone)]
pub struct LeaseVerifier {
    engine: Weak<Engine>,
    background: Arc<BackgroundUse>,
}

impl LeaseVerifier {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::downgrade(engine),
            background: Arc::clone(&engine.background),
        }
    }

    /// Has the keeper renew all its leases now, in batches, on its own threads. Those that the store
    /// no longer has are lost as soon as it says so. A fixed lease is renewed, too, but for no longer
    /// than it has left.
    ///
    /// It returns at once, may be called from any thread and as often as there is a reason, and calls
    /// that come close together cost one round. Returns false if the keeper has ended: forget the
    /// verifier then.
    pub fn verify(&self) -> bool {
        let verified = self.background.with(&self.engine, Engine::verify_leases);
        verified.is_some()
    }

    /// Returns whether the keeper has ended.
    pub fn is_ended(&self) -> bool {
        self.engine.strong_count() == 0
    }
}

impl fmt::Debug for LeaseVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseVerifier").finish_non_exhaustive()
    }
}
