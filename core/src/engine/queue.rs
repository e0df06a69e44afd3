//! The queue inside the process: for every name in use, which thread asks the store, the hold, and
//! the threads that wait, first come, first served.
//!
//! Every change of a name happens under its shard's mutex, and that alone decides races such as "the
//! wait ends while the lease is handed over". The queue knows neither time nor store, so a model
//! checker can run all of it: `tests/model/` compiles this file and `waiter.rs`.
//!
//! Lock order: a shard, then a waiter's slot. Closures that run under a shard's mutex must not
//! call the queue.

use std::collections::VecDeque;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;

use super::hold::Hold;
use super::waiter::{Given, Unserved, WaitKind, Waiter};
use crate::error::Error;
use crate::name::LockName;
use crate::options::LeaseTerms;
use crate::sync::{Arc, Mutex, MutexGuard, SHARDS, lock};

/// The queue of one keeper.
pub(crate) struct Queue {
    shards: [Shard; SHARDS],
}

// On a cache line of its own, so that two names of two shards do not share one.
#[repr(align(64))]
struct Shard(Mutex<Names>);

struct Names {
    table: HashTable<Name>,
    /// No hold of this shard is due before this time; may be too early, never too late.
    due: u64,
}

/// A name that is in use.
struct Name {
    name: LockName,
    stage: Stage,
    waiters: VecDeque<Arc<Waiter>>,
    /// Why the store did not answer the last attempt of a head, or of a release.
    store_error: Option<Error>,
    /// How often the store's answer to a head showed a holder, of this process or another.
    holders_seen: u64,
}

enum Stage {
    /// The head asks the store, and its first answer is not there yet.
    Asking,
    /// The head's last attempt failed, and another follows.
    Failing,
    /// The head waits in the store: another holder was seen.
    Contended,
    /// A guard of this process holds the name.
    Held(Arc<Hold>),
    /// The lease is kept for the next guard until this time, in nanoseconds.
    Lingering(Arc<Hold>, u64),
    /// The lease is on its way back to the store; afterwards the next waiter becomes the head.
    Releasing,
}

/// How a thread enters the queue of a name.
pub(crate) enum Entered {
    /// It has its answer, and does not wait.
    Given(Given),
    /// It waits in the queue. A lingering lease that does not serve it is to be given back first, as after
    /// [`Finished::Release`].
    Queued(Arc<Waiter>, Option<Arc<Hold>>),
}

/// What to do with the lease of a guard that is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// Nothing: the next waiter has it.
    HandedOver,
    /// Keep it until this time, in nanoseconds: see [`Queue::take_lingering`].
    Lingering(u64),
    /// Give it back to the store, then call [`Queue::released`]: until then no other thread asks for
    /// it.
    Release,
    /// Give it back to the store. The name was taken from this hold before.
    Detached,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let shard = |_| {
            Shard(Mutex::new(Names {
                table: HashTable::new(),
                due: u64::MAX,
            }))
        };
        Self {
            shards: std::array::from_fn(shard),
        }
    }

    fn names(&self, name: &LockName) -> MutexGuard<'_, Names> {
        // The table itself uses the low and the topmost bits.
        let index = (name.hash64() >> 32) as usize % SHARDS;
        let [first, ..] = &self.shards;
        lock(&self.shards.get(index).unwrap_or(first).0)
    }

    /// Enters the queue of a name. A single attempt never waits for a holder, only for the head's
    /// first answer, and for no further one if that was a failure. `takes` decides, under the shard's
    /// mutex, whether a lingering lease serves the thread, and gives it to its guard if so.
    pub(crate) fn enter(
        &self,
        name: &LockName,
        terms: LeaseTerms,
        kind: WaitKind,
        takes: impl FnOnce(&Hold) -> bool,
    ) -> Entered {
        let mut names = self.names(name);
        let mut entry = match names.entry(name) {
            TableEntry::Occupied(entry) => entry,
            TableEntry::Vacant(entry) => {
                entry.insert(Name::new(name, Stage::Asking));
                return Entered::Given(Given::HeadPermit);
            }
        };
        let used = entry.get_mut();
        let mut lingering = None;
        if let Stage::Lingering(hold, _) = &used.stage {
            let hold = Arc::clone(hold);
            if takes(&hold) {
                used.stage = Stage::Held(Arc::clone(&hold));
                return Entered::Given(Given::Hold(hold));
            }
            used.stage = Stage::Releasing;
            lingering = Some(hold);
        }
        let unserved = match (&used.stage, &used.store_error) {
            (Stage::Held(_) | Stage::Contended, _) if kind == WaitKind::SingleAttempt => {
                Some(Unserved::Busy)
            }
            (Stage::Failing | Stage::Releasing, Some(error))
                if kind != WaitKind::ThroughOutages =>
            {
                Some(Unserved::Failed(error.clone()))
            }
            _ => None,
        };
        if let Some(unserved) = unserved {
            return Entered::Given(Given::Nothing(unserved));
        }
        let is_seen = matches!(used.stage, Stage::Held(_) | Stage::Contended);
        let seen_before = used.holders_seen.wrapping_sub(u64::from(is_seen));
        let waiter = Waiter::new(terms, kind, seen_before);
        used.waiters.push_back(Arc::clone(&waiter));
        Entered::Queued(waiter, lingering)
    }

    /// Leaves the wait queue because the wait is over or was cancelled. The caller has to deal with
    /// what the waiter was given at that very moment.
    pub(crate) fn leave(&self, name: &LockName, waiter: &Arc<Waiter>) -> Given {
        let mut names = self.names(name);
        let unserved = names.unserved(name, waiter);
        if let Some(used) = names.find(name) {
            used.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        waiter.take().unwrap_or(Given::Nothing(unserved))
    }

    /// Returns why `waiter` gets nothing if its wait ends now.
    pub(crate) fn unserved(&self, name: &LockName, waiter: &Waiter) -> Unserved {
        self.names(name).unserved(name, waiter)
    }

    /// Records that the store showed the head another holder: single attempts end.
    pub(crate) fn contended(&self, name: &LockName) {
        let mut names = self.names(name);
        let mut answered = Vec::new();
        if let Some(used) = names.find(name)
            && matches!(used.stage, Stage::Asking | Stage::Failing)
        {
            used.stage = Stage::Contended;
            answered = used.record_holder();
        }
        drop(names);
        notify(answered);
    }

    /// Records that the store did not answer the head or a release, which go on: threads that ride no
    /// outage out end.
    pub(crate) fn fail(&self, name: &LockName, error: &Error) {
        let mut names = self.names(name);
        let mut ended = Vec::new();
        if let Some(used) = names.find(name)
            && !matches!(used.stage, Stage::Held(_))
        {
            if !matches!(used.stage, Stage::Releasing) {
                used.stage = Stage::Failing;
            }
            used.store_error = Some(error.clone());
            let ends = |kind| kind != WaitKind::ThroughOutages;
            ended = used.end_waits(ends, || Unserved::Failed(error.clone()));
        }
        drop(names);
        notify(ended);
    }

    /// Records that the head was granted `hold`, which [`scan`](Self::scan) polls when it is `due`.
    pub(crate) fn hold(&self, name: &LockName, hold: Arc<Hold>, due: u64) {
        let mut names = self.names(name);
        names.due = names.due.min(due);
        let mut answered = Vec::new();
        if let Some(used) = names.find(name) {
            used.stage = Stage::Held(hold);
            answered = used.record_holder();
        }
        drop(names);
        notify(answered);
    }

    /// Makes the next waiter the head, after the lease went back to the store.
    pub(crate) fn released(&self, name: &LockName) {
        let mut names = self.names(name);
        let next = names.pass_head(name);
        if next.is_some()
            && let Some(used) = names.find(name)
        {
            used.store_error = None;
        }
        drop(names);
        notify(next);
    }

    /// Makes the next waiter the head, after the head got no grant. `store_error` is the error of a
    /// store that did not answer.
    pub(crate) fn pass(&self, name: &LockName, store_error: Option<Error>) {
        let mut names = self.names(name);
        let mut answered = Vec::new();
        if let (Some(used), Some(error)) = (names.find(name), store_error) {
            let ends = |kind| kind == WaitKind::SingleAttempt;
            answered = used.end_waits(ends, || Unserved::Failed(error.clone()));
            used.store_error = Some(error);
        }
        let next = names.pass_head(name);
        drop(names);
        notify(answered);
        notify(next);
    }

    /// Ends the guard of `hold`. Under the shard's mutex, `hand_over` decides whether the lease serves the
    /// terms that the next waiter wants, and counts the hand-over if so; without a waiter, `linger` decides
    /// until when it is kept.
    pub(crate) fn finish(
        &self,
        name: &LockName,
        hold: &Arc<Hold>,
        hand_over: impl FnOnce(LeaseTerms) -> bool,
        linger: impl FnOnce() -> Option<u64>,
    ) -> Finished {
        let mut names = self.names(name);
        let Some(used) = names.find(name).filter(|used| used.is_held_by(hold)) else {
            return Finished::Detached;
        };
        let next = match used.waiters.front() {
            Some(next) if hand_over(next.terms) => used.waiters.pop_front(),
            Some(_) => None,
            None => {
                if let Some(until) = linger() {
                    used.stage = Stage::Lingering(Arc::clone(hold), until);
                    names.due = names.due.min(until);
                    return Finished::Lingering(until);
                }
                None
            }
        };
        match &next {
            Some(next) => next.give(Given::Hold(Arc::clone(hold))),
            None => used.stage = Stage::Releasing,
        }
        drop(names);
        if next.is_none() {
            return Finished::Release;
        }
        notify(next);
        Finished::HandedOver
    }

    /// Takes the leases that have lingered until `now`, to be given back as after [`Finished::Release`].
    pub(crate) fn take_lingering(&self, now: u64) -> Vec<Arc<Hold>> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut names = lock(&shard.0);
            if names.due > now {
                continue;
            }
            for used in names.table.iter_mut() {
                if let Stage::Lingering(hold, until) = &used.stage
                    && *until <= now
                {
                    taken.push(Arc::clone(hold));
                    used.stage = Stage::Releasing;
                }
            }
        }
        taken
    }

    /// Keeps a name that is not in use for a release: of a lease that was lost before its guard ended.
    /// Returns whether it does; [`released`](Self::released) ends that.
    pub(crate) fn begin_release(&self, name: &LockName) -> bool {
        match self.names(name).entry(name) {
            TableEntry::Occupied(_) => false,
            TableEntry::Vacant(entry) => {
                entry.insert(Name::new(name, Stage::Releasing));
                true
            }
        }
    }

    /// Takes the name from a hold that is lost, although its guard may still live; the next waiter
    /// becomes the head.
    pub(crate) fn detach(&self, name: &LockName, hold: &Arc<Hold>) {
        let mut names = self.names(name);
        let mut next = None;
        if names.find(name).is_some_and(|used| used.is_held_by(hold)) {
            next = names.pass_head(name);
        }
        drop(names);
        notify(next);
    }

    /// Has [`scan`](Self::scan) poll the hold of `name` at `due` at the latest.
    pub(crate) fn note_due(&self, name: &LockName, due: u64) {
        let mut names = self.names(name);
        names.due = names.due.min(due);
    }

    /// Makes every waiter check the clock and its cancel token.
    pub(crate) fn unpark_all(&self) {
        for shard in &self.shards {
            let names = lock(&shard.0);
            let waiters = names.table.iter().flat_map(|used| &used.waiters);
            let waiters: Vec<_> = waiters.cloned().collect();
            drop(names);
            for waiter in waiters {
                waiter.unpark();
            }
        }
    }

    /// Returns whether no thread waits for a name, asks the store for one, or gives one back.
    pub(crate) fn is_idle(&self) -> bool {
        let is_held = |used: &Name| matches!(used.stage, Stage::Held(_));
        self.shards.iter().all(|shard| {
            let names = lock(&shard.0);
            let mut used = names.table.iter();
            used.all(|used| is_held(used) && used.waiters.is_empty())
        })
    }

    /// Polls the holds of every shard that has one due by `horizon`; `poll` returns when its hold is
    /// due again. Returns when the next scan is due.
    pub(crate) fn scan(&self, horizon: u64, mut poll: impl FnMut(&Arc<Hold>) -> u64) -> u64 {
        let mut next = u64::MAX;
        for shard in &self.shards {
            let mut names = lock(&shard.0);
            if names.due <= horizon {
                let due = names.table.iter().filter_map(|used| match &used.stage {
                    Stage::Held(hold) => Some(poll(hold)),
                    Stage::Lingering(_, until) => Some(*until),
                    _ => None,
                });
                names.due = due.min().unwrap_or(u64::MAX);
            }
            next = next.min(names.due);
        }
        next
    }
}

impl Names {
    fn entry(&mut self, name: &LockName) -> TableEntry<'_, Name> {
        self.table.entry(
            name.hash64(),
            |used| used.name == *name,
            |used| used.name.hash64(),
        )
    }

    fn find(&mut self, name: &LockName) -> Option<&mut Name> {
        self.table
            .find_mut(name.hash64(), |used| used.name == *name)
    }

    fn unserved(&mut self, name: &LockName, waiter: &Waiter) -> Unserved {
        match self.find(name) {
            None => Unserved::Silent,
            Some(used) => match &used.store_error {
                Some(error) => Unserved::Failed(error.clone()),
                None if used.holders_seen == waiter.seen_before => Unserved::Silent,
                None => Unserved::Busy,
            },
        }
    }

    /// Makes the first waiter the head, or forgets the name if there is none.
    fn pass_head(&mut self, name: &LockName) -> Option<Arc<Waiter>> {
        let mut entry = self
            .table
            .find_entry(name.hash64(), |used| used.name == *name)
            .ok()?;
        let used = entry.get_mut();
        let Some(waiter) = used.waiters.pop_front() else {
            entry.remove();
            return None;
        };
        used.stage = Stage::Asking;
        waiter.give(Given::HeadPermit);
        Some(waiter)
    }
}

impl Name {
    fn new(name: &LockName, stage: Stage) -> Self {
        Self {
            name: name.clone(),
            stage,
            waiters: VecDeque::new(),
            store_error: None,
            holders_seen: 0,
        }
    }

    fn is_held_by(&self, hold: &Arc<Hold>) -> bool {
        matches!(&self.stage, Stage::Held(held) if Arc::ptr_eq(held, hold))
    }

    /// Records that the store's answer to the head showed a holder: single attempts end.
    fn record_holder(&mut self) -> Vec<Arc<Waiter>> {
        self.holders_seen = self.holders_seen.wrapping_add(1);
        self.store_error = None;
        self.end_waits(|kind| kind == WaitKind::SingleAttempt, || Unserved::Busy)
    }

    /// Ends the waits of some kinds. Returns their threads, to be notified.
    fn end_waits(
        &mut self,
        ends: impl Fn(WaitKind) -> bool,
        unserved: impl Fn() -> Unserved,
    ) -> Vec<Arc<Waiter>> {
        let mut ended = Vec::new();
        self.waiters.retain(|waiter| {
            if ends(waiter.kind) {
                waiter.give(Given::Nothing(unserved()));
                ended.push(Arc::clone(waiter));
            }
            !ends(waiter.kind)
        });
        ended
    }
}

fn notify(waiters: impl IntoIterator<Item = Arc<Waiter>>) {
    for waiter in waiters {
        waiter.notify();
    }
}
