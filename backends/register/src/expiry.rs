//! Ends the leases that were not renewed in time, while other leases keep the shared session alive, and does what else is
//! due now and then.
//!
//! A fixed lease, or that of a leaked guard, is no longer renewed while its process lives on. One thread removes it from
//! its entry at its own end. When the process is gone, the session ends with all leases.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::{Error, HostInstant};

use crate::ends::End;
use crate::free_names::KEPT;
use crate::register::Register;
use crate::store::Call;
use crate::task::{Others, Task, Verb};

/// How often a provider removes the entries of names that it has released.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// The pause after a request that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Register {
    /// Starts the thread, which ends when the provider does.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        let weak = Arc::downgrade(self);
        let run = move |_| Weak::upgrade(&weak).map(|register| register.end_due());
        self.ends.timer.start("lockkeeper-register", run)
    }

    /// Does what is due, and returns when something is due next.
    fn end_due(&self) -> HostInstant {
        let now = self.now();
        let mut state = self.ends.state.lock();
        let over = state.leases.extract_if(|_, lease| lease.ends <= now);
        let over: Vec<(String, End)> = over.collect();
        let (sweeps, looks) = (state.sweep_at <= now, state.look_at <= now);
        if sweeps {
            state.sweep_at = now + SWEEP_EVERY;
        }
        if looks {
            // The next grant schedules it again.
            state.look_at = HostInstant::NEVER;
        }
        drop(state);
        for over in over.chunks(self.batch()) {
            self.end(over, self.background_call());
        }
        if sweeps {
            self.remove_own(KEPT, self.background_call());
        }
        if looks {
            // The next look follows.
            let _ = self.remove_abandoned(self.background_call());
        }
        let mut state = self.ends.state.lock();
        if self.freed.is_empty() && state.look_at == HostInstant::NEVER {
            state.sweep_at = HostInstant::NEVER;
        }
        let due = [state.sweep_at, state.look_at];
        let due = due
            .into_iter()
            .chain(state.leases.values().map(|lease| lease.ends));
        state.next = due.min().unwrap_or(HostInstant::NEVER);
        state.next
    }

    /// Removes what only waits for another attempt to remove it, at the end of the provider.
    pub(crate) fn end_pending(&self, call: Call<'_>) {
        let mut state = self.ends.state.lock();
        let pending = state.leases.extract_if(|_, lease| lease.lease.is_none());
        let pending: Vec<_> = pending.collect();
        drop(state);
        for pending in pending.chunks(self.batch()) {
            self.end(pending, call);
        }
    }

    /// Removes leases that have ended.
    fn end(&self, over: &[(String, End)], call: Call<'_>) {
        let tasks = over.iter().map(|(owner, end)| Task {
            key: &end.key,
            owner,
            verb: Verb::remove(end.lease.as_ref().map(|it| it.0), end.lease.is_none()),
        });
        let mut tasks: Vec<_> = tasks.collect();
        let answers = self.carry_out(&mut tasks, &mut Others::new(), call);
        for ((owner, end), answer) in over.iter().zip(answers) {
            if !matches!(answer, Some(Ok(_))) {
                // The epoch stays: another process may have resumed the lease meanwhile, with a larger one.
                let lease = end
                    .lease
                    .as_ref()
                    .map(|(epoch, session)| (*epoch, &**session));
                let again = self.now() + RETRY_AFTER;
                self.ends.enter(&end.key, owner, lease, again);
            }
        }
    }

    /// Returns the bounds of a call for which no caller waits.
    pub(crate) fn background_call(&self) -> Call<'static> {
        let limit = self.store.capabilities().attempt_limit();
        Call::until(self.now() + limit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_utils::sync::Parker;
    use lockkeeper_core::SystemClock;

    use super::*;
    use crate::key::Key;
    use crate::map_store::{Faults, Map, MapStore};

    #[test]
    fn removal_that_failed_is_repeated_for_the_same_epoch() {
        let map = Arc::new(Map::new(false, Faults::default()));
        let unparker = Parker::new().unparker().clone();
        let store = MapStore::new(&map, "n");
        let register = Register::new(Arc::new(store), Arc::new(SystemClock), unparker);
        let key = Key::read("lock/a");
        register
            .ends
            .enter(&key, "1-1", Some((5, "s")), register.now());
        map.set(|faults| faults.is_cut_off = true);
        register.end_due();
        let state = register.ends.state.lock();
        let end = state.leases.get("1-1").unwrap();
        assert_eq!(end.lease.as_ref().map(|lease| lease.0), Some(5));
    }
}
