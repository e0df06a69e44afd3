//! Ends the leases that were not renewed in time, while other leases keep the shared session alive, and does what else is
//! due now and then.
//!
//! A fixed lease, or that of a leaked guard, is no longer renewed while its process lives on. One thread removes it from
//! its entry at its own end. When the process is gone, the session ends with all leases.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant, Timer};
use parking_lot::Mutex;

use crate::exchange::{Others, Task, Verb};
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::register::Register;
use crate::store::{Call, RegisterStore, SessionId};
use crate::sweep::KEPT;

/// How often a provider removes the entries of names that it has released.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// How often a provider looks for what dead processes have left, at the most.
const LOOK_EVERY: Duration = Duration::from_secs(900);
/// The pause after a request that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The leases of a provider with their ends, and the thread that removes them.
pub(crate) struct Expiry {
    clock: Arc<dyn Clock>,
    timer: Timer,
    state: Mutex<State>,
}

struct State {
    /// By their owners.
    leases: HashMap<String, End>,
    /// When to remove own entries next, and those of dead processes.
    sweep_at: HostInstant,
    look_at: HostInstant,
    next: HostInstant,
}

/// The end of a lease.
#[derive(Clone, Debug)]
struct End {
    key: Key,
    ends: HostInstant,
    /// Its epoch and session. `None` if what an earlier write may have made is only to be removed.
    lease: Option<(u64, SessionId)>,
}

impl End {
    fn is_of(&self, epoch: u64) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.0 == epoch)
    }
}

impl Expiry {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let never = HostInstant::NEVER;
        Self {
            timer: Timer::new(Arc::clone(&clock)),
            clock,
            state: Mutex::new(State {
                leases: HashMap::new(),
                sweep_at: never,
                look_at: never,
                next: never,
            }),
        }
    }

    /// Starts the thread, which ends when the provider does.
    pub(crate) fn start<S: RegisterStore>(register: &Arc<Register<S>>) -> Result<(), Error> {
        let weak = Arc::downgrade(register);
        let run = move |_| Weak::upgrade(&weak).map(|register| register.end_due());
        register.expiry.timer.start("lockkeeper-register", run)
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

impl<S: RegisterStore> Register<S> {
    /// Does what is due, and returns when something is due next.
    fn end_due(&self) -> HostInstant {
        let now = self.now();
        let mut state = self.expiry.state.lock();
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
        let mut state = self.expiry.state.lock();
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
        let mut state = self.expiry.state.lock();
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
                let again = self.now() + RETRY_AFTER;
                self.expiry.enter(&end.key, owner, None, again);
            }
        }
    }

    /// Returns the bounds of a call for which no caller waits.
    pub(crate) fn background_call(&self) -> Call<'static> {
        let limit = self.store.capabilities().attempt_limit();
        Call {
            deadline: self.now() + limit,
            cancel: None,
        }
    }
}
