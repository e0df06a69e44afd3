//! The queue inside the process. For every name in use, it knows the thread that asks the store,
//! the holds, and the threads that wait, first come, first served. `name_state.rs` has the rules
//! for one name.
//!
//! Every change of a name happens under its shard's mutex. The mutex alone decides races, such as a wait that
//! ends during a hand-over. The queue knows neither time nor store, so a model checker can run all of it.
//! `tests/model/` compiles this file, `key.rs`, `name_state.rs`, `holds.rs` and `waiter.rs`.
//!
//! Lock order: a shard, then a waiter's slot. Closures that run under a shard's mutex must not
//! call the queue.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::hold::Hold;
use super::holds::Held;
use super::key::Key;
use super::name_state::{Finished, HandOver, NameState};
use super::waiter::{Given, Served, Unserved, WaitKind, Waiter};
use crate::error::Error;
use crate::name::LockName;
use crate::options::LeaseTerms;
use crate::sync::{Arc, Mutex, MutexGuard, SHARDS, lock};

/// The queue of one keeper.
pub(crate) struct Queue {
    shards: [Shard; SHARDS],
    hand_over: Box<HandOver>,
}

// On a cache line of its own, so that two names of two shards do not share one.
#[repr(align(64))]
struct Shard(Mutex<Names>);

/// The names in use of one shard.
struct Names {
    table: HashTable<Name>,
    /// No hold of this shard is due before this time; may be too early, never too late.
    due: u64,
}

/// A name that is in use.
struct Name {
    name: LockName,
    is_permit: bool,
    state: NameState,
}

/// How a thread enters the queue of a name.
pub(crate) enum Entered {
    /// It has its answer, and does not wait.
    Given(Given),
    /// It waits in the queue.
    Queued(Arc<Waiter>),
}

impl Queue {
    /// Makes a queue in which `hand_over` decides whether a lease serves a further guard.
    pub(crate) fn new(hand_over: Box<HandOver>) -> Self {
        let shard = |_| {
            Shard(Mutex::new(Names {
                table: HashTable::new(),
                due: u64::MAX,
            }))
        };
        Self {
            shards: std::array::from_fn(shard),
            hand_over,
        }
    }

    fn names(&self, key: Key<'_>) -> MutexGuard<'_, Names> {
        // The table itself uses the low and the topmost bits.
        let index = (key.hash() >> 32) as usize % SHARDS;
        let [first, ..] = &self.shards;
        lock(&self.shards.get(index).unwrap_or(first).0)
    }

    /// Changes the state of a name that is in use, and serves the waiters that can be served then.
    fn change(&self, key: Key<'_>, change: impl FnOnce(&mut NameState, &mut Served)) {
        let mut served = Served::default();
        let mut names = self.names(key);
        names.change(key, |state| {
            change(state, &mut served);
            state.serve(&*self.hand_over, &mut served);
        });
        drop(names);
        served.notify();
    }

    /// Enters the queue of a name. A single attempt never waits for a holder, only for the head's
    /// first answer, and for no further one if that was a failure.
    pub(crate) fn enter(&self, key: Key<'_>, terms: LeaseTerms, kind: WaitKind) -> Entered {
        let mut names = self.names(key);
        if let Some(given) = names.offer(key, terms, kind, &*self.hand_over) {
            return Entered::Given(given);
        }
        let Some(state) = names.find(key) else {
            return Entered::Given(Given::Nothing(Unserved::Silent));
        };
        if kind.ends_at_failure()
            && let Some(error) = state.silence()
        {
            return Entered::Given(Given::Nothing(Unserved::Failed(error.clone())));
        }
        if kind.is_attempt() && state.is_busy() {
            return Entered::Given(Given::Nothing(Unserved::Busy));
        }
        let seen_before = state.holders_seen.wrapping_sub(u64::from(state.is_busy()));
        let waiter = Waiter::new(terms, kind, seen_before);
        state.waiters.push_back(Arc::clone(&waiter));
        Entered::Queued(waiter)
    }

    /// Returns what a thread gets at once. `None` if it would have to wait in the queue.
    pub(crate) fn enter_free(&self, key: Key<'_>, terms: LeaseTerms) -> Option<Given> {
        let kind = WaitKind::SingleAttempt;
        self.names(key).offer(key, terms, kind, &*self.hand_over)
    }

    /// Leaves the wait queue because the wait is over or was cancelled. The caller has to deal with
    /// what the waiter was given at that very moment.
    pub(crate) fn leave(&self, key: Key<'_>, waiter: &Arc<Waiter>) -> Given {
        let mut unserved = None;
        self.change(key, |state, _| {
            unserved = Some(unserved_by(state, waiter));
            state.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        });
        // Nothing is given to a waiter that is not in the queue.
        let given = waiter.take();
        given.unwrap_or_else(|| Given::Nothing(unserved.unwrap_or(Unserved::Silent)))
    }

    /// Returns why `waiter` gets nothing if its wait ends now.
    pub(crate) fn unserved(&self, key: Key<'_>, waiter: &Waiter) -> Unserved {
        let mut names = self.names(key);
        let state = names.find(key);
        state.map_or(Unserved::Silent, |state| unserved_by(state, waiter))
    }

    /// Records that the store showed the head another holder: single attempts end.
    pub(crate) fn contended(&self, key: Key<'_>) {
        self.change(key, |state, _| state.contended());
    }

    /// Records that the store did not answer the head or a release, which go on: threads that ride no
    /// outage out end.
    pub(crate) fn fail(&self, key: Key<'_>, is_release: bool, error: &Error) {
        self.change(key, |state, served| {
            if state.fail(is_release, error) {
                state.end_waits(
                    WaitKind::ends_at_failure,
                    || Unserved::Failed(error.clone()),
                    served,
                );
            }
        });
    }

    /// Records that the head was granted `hold`, which [`scan`](Self::scan) polls when it is `due`.
    pub(crate) fn hold(&self, key: Key<'_>, hold: Arc<Hold>, due: u64) {
        let mut served = Served::default();
        let mut names = self.names(key);
        names.due = names.due.min(due);
        names.change(key, |state| {
            state.granted(hold);
            state.serve(&*self.hand_over, &mut served);
        });
        drop(names);
        served.notify();
    }

    /// Adds a hold whose lease was resumed, and which is polled when it is `due`. Returns the other holds of the name:
    /// only the latest of all is not lost.
    pub(crate) fn adopt(&self, key: Key<'_>, hold: Arc<Hold>, due: u64) -> Vec<Arc<Hold>> {
        let mut names = self.names(key);
        names.due = names.due.min(due);
        match names.entry(key) {
            Entry::Occupied(mut entry) => entry.get_mut().state.adopt(hold),
            Entry::Vacant(entry) => {
                entry.insert(Name::new(key, NameState::resumed(hold)));
                Vec::new()
            }
        }
    }

    /// Returns whether a guard of this process has the name.
    pub(crate) fn is_held(&self, key: Key<'_>) -> bool {
        let mut names = self.names(key);
        names.find(key).is_some_and(|state| state.is_held())
    }

    /// Returns whether a lease of the name is being released to the store.
    pub(crate) fn is_releasing(&self, key: Key<'_>) -> bool {
        let mut names = self.names(key);
        let state = names.find(key);
        state.is_some_and(|state| state.is_releasing())
    }

    /// Makes the next waiter the head, after a lease went back to the store.
    pub(crate) fn released(&self, key: Key<'_>) {
        self.change(key, |state, _| state.released());
    }

    /// Makes the next waiter the head, after the head got no grant. `store_error` is the error of a
    /// store that did not answer.
    pub(crate) fn pass(&self, key: Key<'_>, store_error: Option<Error>) {
        self.end_head(key, store_error, NameState::end_head);
    }

    /// Keeps the name after the head got no grant, as for a release: [`released`](Self::released) makes the next
    /// waiter the head.
    pub(crate) fn keep(&self, key: Key<'_>, store_error: Option<Error>) {
        self.end_head(key, store_error, NameState::keep);
    }

    fn end_head(&self, key: Key<'_>, store_error: Option<Error>, end: fn(&mut NameState)) {
        self.change(key, |state, served| {
            end(state);
            if let Some(error) = store_error {
                let is_attempt = |kind| kind == WaitKind::SingleAttempt;
                state.end_waits(is_attempt, || Unserved::Failed(error.clone()), served);
                state.store_error = Some(error);
            }
        });
    }

    /// Ends a guard of `hold`. A lease that no other guard has goes to the next waiter if it serves that
    /// one, or back to the store.
    pub(crate) fn finish(&self, key: Key<'_>, hold: &Arc<Hold>, number: u32) -> Finished {
        let mut names = self.names(key);
        let Some(state) = names.find(key) else {
            return Finished::Detached;
        };
        let mut served = Served::default();
        let finished = state.finish(hold, &*self.hand_over, &mut served);
        if finished == Finished::HandedOver {
            hold.end_guard(number);
        }
        drop(names);
        served.notify();
        finished
    }

    /// Keeps a name that is not in use for a release: of a lease that was lost before its guard ended.
    /// Returns whether it does; [`released`](Self::released) ends that.
    pub(crate) fn begin_release(&self, key: Key<'_>) -> bool {
        match self.names(key).entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Name::new(key, NameState::releasing()));
                true
            }
        }
    }

    /// Takes the name from a hold that is lost, although its guards may still live; the next waiter
    /// becomes the head.
    pub(crate) fn detach(&self, key: Key<'_>, hold: &Arc<Hold>) {
        self.change(key, |state, _| state.detach(hold));
    }

    /// Makes [`scan`](Self::scan) poll the holds of a name at `due` at the latest.
    pub(crate) fn note_due(&self, key: Key<'_>, due: u64) {
        let mut names = self.names(key);
        names.due = names.due.min(due);
    }

    /// Makes every waiter check the clock and its cancel token.
    pub(crate) fn unpark_all(&self) {
        for shard in &self.shards {
            let names = lock(&shard.0);
            let waiters = names.states().flat_map(|state| &state.waiters);
            let waiters: Vec<_> = waiters.cloned().collect();
            drop(names);
            for waiter in waiters {
                waiter.unpark();
            }
        }
    }

    /// Returns whether no thread waits for a name, asks the store for one, or gives one back.
    pub(crate) fn is_idle(&self) -> bool {
        self.shards.iter().all(|shard| {
            let names = lock(&shard.0);
            names.states().all(NameState::is_idle)
        })
    }

    /// Polls the holds of every shard that has one due by `horizon`; `poll` returns when its hold is
    /// due again. Returns when the next scan is due.
    pub(crate) fn scan(&self, horizon: u64, mut poll: impl FnMut(&Arc<Hold>) -> u64) -> u64 {
        let mut next = u64::MAX;
        for shard in &self.shards {
            let mut names = lock(&shard.0);
            if names.due <= horizon {
                let held = names.states().flat_map(NameState::held);
                let due = held.map(|held: &Held| poll(&held.hold));
                names.due = due.min().unwrap_or(u64::MAX);
            }
            next = next.min(names.due);
        }
        next
    }
}

impl Names {
    fn entry(&mut self, key: Key<'_>) -> Entry<'_, Name> {
        self.table
            .entry(key.hash(), |used| used.is(key), |used| used.name.hash64())
    }

    /// Returns what a thread gets at once that comes to a name.
    #[inline(always)] // As in `release.rs`.
    fn offer(
        &mut self,
        key: Key<'_>,
        terms: LeaseTerms,
        kind: WaitKind,
        hand_over: &HandOver,
    ) -> Option<Given> {
        match self.entry(key) {
            Entry::Occupied(mut entry) => {
                let state = &mut entry.get_mut().state;
                match state.waiters.is_empty() {
                    true => state.offer(terms, kind, hand_over),
                    false => state.mismatch(terms.mode),
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(Name::new(key, NameState::asked_for(terms.mode)));
                Some(Given::HeadPermit)
            }
        }
    }

    fn find(&mut self, key: Key<'_>) -> Option<&mut NameState> {
        let used = self.table.find_mut(key.hash(), |used| used.is(key))?;
        Some(&mut used.state)
    }

    /// Changes the state of a name that is in use, and forgets the name if it is not in use any more.
    fn change(&mut self, key: Key<'_>, change: impl FnOnce(&mut NameState)) {
        let used = self.table.find_entry(key.hash(), |used| used.is(key));
        if let Ok(mut used) = used {
            let state = &mut used.get_mut().state;
            change(state);
            if state.is_unused() {
                used.remove();
            }
        }
    }

    fn states(&self) -> impl Iterator<Item = &NameState> {
        self.table.iter().map(|used| &used.state)
    }
}

impl Name {
    fn new(key: Key<'_>, state: NameState) -> Self {
        Self {
            name: key.name.clone(),
            is_permit: key.is_permit,
            state,
        }
    }

    fn is(&self, key: Key<'_>) -> bool {
        self.is_permit == key.is_permit && self.name == *key.name
    }
}

/// Returns why a waiter of a name gets nothing if its wait ends now.
fn unserved_by(state: &NameState, waiter: &Waiter) -> Unserved {
    match &state.store_error {
        Some(error) => Unserved::Failed(error.clone()),
        None if state.holders_seen == waiter.seen_before => Unserved::Silent,
        None if state.is_busy() => Unserved::Busy,
        None => Unserved::Freed,
    }
}
