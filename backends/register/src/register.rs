//! The parts that a provider and its threads share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crossbeam_utils::sync::Unparker;
use lockkeeper_core::{CancelToken, Clock, HostInstant, LeaseVerifiers, epoch_at};
use parking_lot::Mutex;

use crate::ends::Ends;
use crate::free_names::FreeNames;
use crate::key::Key;
use crate::sessions::Sessions;
use crate::store::{Call, RegisterStore};

/// A first waiter that could be granted for this long, by the clock of the process that sees it, is dead or stopped. A
/// waiter with few others ahead looks more often than that.
pub(crate) const GRACE: Duration = Duration::from_millis(750);
/// The longest time that the end of a provider takes.
const CLOSING: Duration = Duration::from_millis(250);

pub(crate) struct Register {
    pub(crate) store: Arc<dyn RegisterStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sessions: Sessions,
    pub(crate) ends: Ends,
    pub(crate) freed: FreeNames,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    /// Ends the thread that watches for evictions, and lets it begin.
    pub(crate) closing: CancelToken,
    pub(crate) watch: Unparker,
    /// The entry with the largest epoch of the entries that were removed.
    pub(crate) floor: Key,
    /// The largest epoch that this provider was granted.
    pub(crate) largest: AtomicU64,
    /// The entries whose first waiter could be granted the name, each with the time at which this process first saw that.
    unclaimed: Mutex<HashMap<Key, (FirstWaiter, HostInstant)>>,
}

/// The owner of a first waiter, and the last epoch of the entry: a waiter that was skipped, and is the first again, has its
/// time anew.
type FirstWaiter = (String, u64);

impl Register {
    pub(crate) fn new(
        store: Arc<dyn RegisterStore>,
        clock: Arc<dyn Clock>,
        watch: Unparker,
    ) -> Self {
        Self {
            store,
            sessions: Sessions::default(),
            ends: Ends::new(Arc::clone(&clock)),
            freed: FreeNames::default(),
            verifiers: Arc::default(),
            closing: CancelToken::new(),
            watch,
            floor: Key::of_namespace("floor"),
            largest: AtomicU64::new(0),
            unclaimed: Mutex::default(),
            clock,
        }
    }

    pub(crate) fn now(&self) -> HostInstant {
        self.clock.now()
    }

    /// Returns the smallest epoch of a grant at this moment.
    pub(crate) fn least_epoch(&self) -> u64 {
        epoch_at(SystemTime::now()).max(self.largest.load(Ordering::Relaxed) + 1)
    }

    /// Returns whether this first waiter of an entry, who could be granted, has not taken the name for too long. Waiters
    /// behind it may come and go.
    pub(crate) fn is_overdue(&self, key: &Key, first: (&str, u64)) -> bool {
        let now = self.now();
        let first = (first.0.to_owned(), first.1);
        let mut unclaimed = self.unclaimed.lock();
        if unclaimed.len() >= 256 {
            unclaimed.retain(|_, (_, since)| now < *since + 4 * GRACE);
        }
        let known = unclaimed.entry(key.clone()).or_default();
        if known.0 != first {
            *known = (first, now);
        }
        now >= known.1 + GRACE
    }

    /// Returns the most writes of one call.
    pub(crate) fn batch(&self) -> usize {
        self.store.capabilities().batch()
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.closing.cancel();
        self.watch.unpark();
        let deadline = self.now() + CLOSING;
        let call = Call::until(deadline);
        self.end_pending(call);
        self.remove_own(Duration::ZERO, call);
        // Programs that live for a moment do not look for what dead ones have left. One in some of them does.
        if self.largest.load(Ordering::Relaxed) > 0 && fastrand::u8(..16) == 0 {
            let _ = self.remove_abandoned(call);
        }
        let held = self.ends.sessions();
        let unused = self.sessions.take();
        let unused = unused.iter().filter(|id| !held.contains(*id));
        let unused: Vec<&str> = unused.map(String::as_str).collect();
        if !unused.is_empty() {
            // They end by themselves otherwise.
            let _ = self.store.end_sessions(&unused, call);
        }
    }
}
