//! The ends of the leases of a provider, by its own clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, HostInstant, Timer};
use parking_lot::Mutex;

use crate::free_names::KEPT;
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::store::SessionId;

/// How often a provider looks for what dead processes have left, at the most.
const LOOK_EVERY: Duration = Duration::from_secs(900);

/// The leases of a provider with their ends, and the timer of the thread that removes them.
pub(crate) struct Ends {
    clock: Arc<dyn Clock>,
    pub(crate) timer: Timer,
    pub(crate) state: Mutex<EndsState>,
}

pub(crate) struct EndsState {
    /// By their owners.
    pub(crate) leases: HashMap<String, End>,
    /// When to remove own entries next, and those of dead processes.
    pub(crate) sweep_at: HostInstant,
    pub(crate) look_at: HostInstant,
    pub(crate) next: HostInstant,
}

/// The end of a lease.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) key: Key,
    pub(crate) ends: HostInstant,
    /// Its epoch and session. `None` if what an earlier write may have made is only to be removed.
    pub(crate) lease: Option<(u64, SessionId)>,
}

impl End {
    fn is_of(&self, epoch: u64) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.0 == epoch)
    }
}

impl Ends {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let never = HostInstant::NEVER;
        Self {
            timer: Timer::new(Arc::clone(&clock)),
            clock,
            state: Mutex::new(EndsState {
                leases: HashMap::new(),
                sweep_at: never,
                look_at: never,
                next: never,
            }),
        }
    }

    /// Adds a granted lease, or a place that is to be removed, which has no session.
    pub(crate) fn enter(
        &self,
        key: &Key,
        owner: &str,
        lease: Option<(u64, &str)>,
        ends: HostInstant,
    ) {
        let end = End {
            key: key.clone(),
            ends,
            lease: lease.map(|(epoch, session)| (epoch, session.to_owned())),
        };
        let mut state = self.state.lock();
        state.leases.insert(owner.to_owned(), end);
        let mut due = ends;
        if lease.is_some() && state.look_at == HostInstant::NEVER {
            let now = self.clock.now();
            state.look_at = now + LOOK_EVERY.mul_f64(fastrand::f64());
            state.sweep_at = state.sweep_at.min(now + KEPT);
            due = due.min(state.look_at).min(state.sweep_at);
        }
        if due < state.next {
            state.next = due;
            self.timer.note(due);
        }
    }

    /// Moves the end of a lease to a later time. Returns false if the lease has ended.
    pub(crate) fn renew(&self, lease: &RegisterLease, now: HostInstant, ttl: Duration) -> bool {
        let mut state = self.state.lock();
        let end = state.leases.get_mut(&lease.owner);
        let end = end.filter(|it| it.is_of(lease.epoch) && now < it.ends);
        end.map(|end| end.ends = end.ends.max(now + ttl)).is_some()
    }

    /// Forgets a lease that was released or passed on.
    pub(crate) fn remove(&self, owner: &str, epoch: u64) {
        let leases = &mut self.state.lock().leases;
        if leases.get(owner).is_some_and(|it| it.is_of(epoch)) {
            leases.remove(owner);
        }
    }

    /// Returns the sessions of all leases.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        let state = self.state.lock();
        let sessions = state.leases.values();
        sessions
            .filter_map(|it| Some(it.lease.clone()?.1))
            .collect()
    }
}
