//! The queue inside the process: for every name the thread that asks the store, the hold, and the
//! threads that wait, in order.
//!
//! A table of names, each with a stage and a FIFO wait queue. Every change of a name happens
//! under its shard's mutex, and that alone decides races such as "the wait ends while the lease is
//! handed over". The queue knows neither time nor store: what it cannot decide it is told. That is
//! why a model checker can run all of it (`tests/model.rs` compiles this very file).
//!
//! Lock order: a shard, then a waiter's slot. Closures that run under a shard's mutex must not
//! call the queue.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, wait};

/// What names are looked up by.
pub(crate) trait Key: Clone + Eq {
    fn hash64(&self) -> u64;
}

/// The queue of one keeper. `H` is a hold that can be handed over, `W` what a waiter wishes for,
/// `E` the error of a store that did not answer the head.
pub(crate) struct Queue<K, H, W, E> {
    first: Shard<K, H, W, E>,
    rest: Box<[Shard<K, H, W, E>]>,
}

// On a cache line of its own, so that two names of two shards do not share one.
#[repr(align(64))]
struct Shard<K, H, W, E>(Mutex<Names<K, H, W, E>>);

struct Names<K, H, W, E> {
    table: HashTable<Name<K, H, W, E>>,
    /// No hold of this shard is due before this; may be too early, never too late.
    due: u64,
}

struct Name<K, H, W, E> {
    key: K,
    stage: Stage<H>,
    wait_queue: VecDeque<Arc<Waiter<H, W, E>>>,
    /// Why the store did not answer the last head that asked.
    store_error: Option<E>,
    /// How often the store's answer to a head showed a holder, of this process or another.
    holders_seen: u64,
}

enum Stage<H> {
    /// The head asks the store, and its first answer is not there yet.
    Asking,
    /// The head waits in the store: another holder was seen.
    Contended,
    /// A guard of this process holds.
    Held(Arc<H>),
    /// The store is being given the lease back; then the next one's turn comes.
    Releasing,
}

struct Waiter<H, W, E> {
    wish: W,
    /// Ends as soon as the name is known to be held: a single attempt.
    once: bool,
    /// The name's `holders_seen` before this waiter could have seen one.
    before: u64,
    slot: Mutex<Slot<H, E>>,
    condvar: Condvar,
}

struct Slot<H, E> {
    given: Option<Given<H, E>>,
    unparked: bool,
}

/// What a waiter is given, once.
pub(crate) enum Given<H, E> {
    /// It is the head now, and asks the store.
    HeadPermit,
    /// The lease was handed over.
    Hold(Arc<H>),
    /// The name is held, and this waiter would not wait.
    Busy,
    /// The store did not answer the head, and this one would not wait.
    Failed(E),
}

/// The first answer to a thread that wants a name.
pub(crate) enum Entered<H, W, E> {
    /// It is the head, and asks the store.
    HeadPermit,
    /// The name is held, and the caller would not wait.
    Busy,
    /// It waits in the queue.
    Queued(Ticket<H, W, E>),
}

/// A waiter of a name's queue.
pub(crate) struct Ticket<H, W, E>(Arc<Waiter<H, W, E>>);

/// What leaving the queue found.
pub(crate) enum Left<H, E> {
    /// It was given something at that very moment, and has to deal with it.
    Given(Given<H, E>),
    /// The waiter is no longer in the queue.
    Gone(Unserved<E>),
}

/// Why a waiter got nothing in its time.
pub(crate) enum Unserved<E> {
    /// A holder was seen while it waited.
    Busy,
    /// The store failed the last head that asked.
    Failed(E),
    /// The store has answered no head while the waiter waited.
    Silent,
}

/// What is to be done with the lease of a guard that is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// Nothing: the next waiter has it.
    HandedOver,
    /// Give it back to the store, then call [`Queue::pass`]: until then no other thread asks for it.
    Release,
    /// The name was taken from this hold before.
    Detached,
}

impl<K: Key, H, W, E: Clone> Queue<K, H, W, E> {
    pub(crate) fn new(shards: usize) -> Self {
        let shard = |_| {
            Shard(Mutex::new(Names {
                table: HashTable::new(),
                due: u64::MAX,
            }))
        };
        Self {
            first: shard(0),
            rest: (1..shards).map(shard).collect(),
        }
    }

    fn names(&self, key: &K) -> MutexGuard<'_, Names<K, H, W, E>> {
        // The table itself uses the low and the topmost bits.
        let index = (key.hash64() >> 32) as usize % (self.rest.len() + 1);
        lock(&self.rest.get(index).unwrap_or(&self.first).0)
    }

    fn shards(&self) -> impl Iterator<Item = &Shard<K, H, W, E>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Wants `key`. With `once` it never waits for a holder, only for the head's first answer.
    pub(crate) fn enter(&self, key: &K, wish: W, once: bool) -> Entered<H, W, E> {
        let mut names = self.names(key);
        let hash = key.hash64();
        match names
            .table
            .entry(hash, |name| name.key == *key, |name| name.key.hash64())
        {
            TableEntry::Vacant(entry) => {
                entry.insert(Name {
                    key: key.clone(),
                    stage: Stage::Asking,
                    wait_queue: VecDeque::new(),
                    store_error: None,
                    holders_seen: 0,
                });
                Entered::HeadPermit
            }
            TableEntry::Occupied(mut entry) => {
                let name = entry.get_mut();
                if once && matches!(name.stage, Stage::Held(_) | Stage::Contended) {
                    return Entered::Busy;
                }
                let is_seen = !matches!(name.stage, Stage::Asking);
                let waiter = Arc::new(Waiter {
                    wish,
                    once,
                    before: name.holders_seen.wrapping_sub(u64::from(is_seen)),
                    slot: Mutex::new(Slot {
                        given: None,
                        unparked: false,
                    }),
                    condvar: Condvar::new(),
                });
                name.wait_queue.push_back(Arc::clone(&waiter));
                Entered::Queued(Ticket(waiter))
            }
        }
    }

    /// Leaves the wait queue, because the wait is over or was cancelled.
    pub(crate) fn leave(&self, key: &K, ticket: &Ticket<H, W, E>) -> Left<H, E> {
        let mut names = self.names(key);
        let mut unserved = Unserved::Silent;
        if let Some(name) = names.find(key) {
            unserved = name.unserved(&ticket.0);
            name.wait_queue
                .retain(|waiter| !Arc::ptr_eq(waiter, &ticket.0));
        }
        match lock(&ticket.0.slot).given.take() {
            Some(given) => Left::Given(given),
            None => Left::Gone(unserved),
        }
    }

    /// Passes the head permit on from a waiter whose wait was over when it got it.
    pub(crate) fn decline(&self, key: &K, ticket: &Ticket<H, W, E>) -> Unserved<E> {
        let mut names = self.names(key);
        let unserved = names
            .find(key)
            .map_or(Unserved::Silent, |name| name.unserved(&ticket.0));
        let next = names.pass_head(key);
        drop(names);
        notify(next);
        unserved
    }

    /// Records that the store showed the head another holder: single attempts end.
    pub(crate) fn contended(&self, key: &K) {
        let mut names = self.names(key);
        let mut gone = Vec::new();
        if let Some(name) = names.find(key)
            && matches!(name.stage, Stage::Asking)
        {
            name.stage = Stage::Contended;
            gone = name.record_holder();
        }
        drop(names);
        notify(gone);
    }

    /// The head was granted `hold`, which wants to be looked at when it is `due`.
    pub(crate) fn hold(&self, key: &K, hold: Arc<H>, due: u64) {
        let mut names = self.names(key);
        names.due = names.due.min(due);
        let mut gone = Vec::new();
        if let Some(name) = names.find(key) {
            name.stage = Stage::Held(hold);
            gone = name.record_holder();
        }
        drop(names);
        notify(gone);
    }

    /// The head steps down without a grant, or the lease is back in the store: the next one's turn.
    /// `store_error` is the error of a store that did not answer.
    pub(crate) fn pass(&self, key: &K, store_error: Option<E>) {
        let mut names = self.names(key);
        let mut gone = Vec::new();
        if let (Some(name), Some(error)) = (names.find(key), store_error) {
            gone = name.answer_single_attempts(&|| Given::Failed(error.clone()));
            name.store_error = Some(error);
        }
        let next = names.pass_head(key);
        drop(names);
        notify(gone);
        notify(next);
    }

    /// The guard of `hold` is done. `hand_over` is asked, under the shard's mutex, whether the
    /// lease fits the wish of the next waiter, and makes it theirs if so.
    pub(crate) fn finish(
        &self,
        key: &K,
        hold: &Arc<H>,
        hand_over: impl FnOnce(&W) -> bool,
    ) -> Finished {
        let mut names = self.names(key);
        let Some(name) = names.find(key) else {
            return Finished::Detached;
        };
        if !name.is_held_by(hold) {
            return Finished::Detached;
        }
        if !name
            .wait_queue
            .front()
            .is_some_and(|next| hand_over(&next.wish))
        {
            name.stage = Stage::Releasing;
            return Finished::Release;
        }
        let next = name.wait_queue.pop_front();
        if let Some(waiter) = &next {
            waiter.give(Given::Hold(Arc::clone(hold)));
        }
        drop(names);
        notify(next);
        Finished::HandedOver
    }

    /// Takes the name from a hold that is lost, although its guard may still live; the next waiter
    /// becomes the head.
    pub(crate) fn detach(&self, key: &K, hold: &Arc<H>) {
        let mut names = self.names(key);
        let mut next = None;
        if names.find(key).is_some_and(|name| name.is_held_by(hold)) {
            next = names.pass_head(key);
        }
        drop(names);
        notify(next);
    }

    /// Has a hold looked at when it is `due`, if the name is still its own.
    pub(crate) fn touch(&self, key: &K, due: u64) {
        let mut names = self.names(key);
        names.due = names.due.min(due);
    }

    /// Has every waiter look at the clock and at its cancel token.
    pub(crate) fn unpark_all(&self) {
        for shard in self.shards() {
            let names = lock(&shard.0);
            let waiting: Vec<_> = names
                .table
                .iter()
                .flat_map(|name| name.wait_queue.iter().cloned())
                .collect();
            drop(names);
            for waiter in waiting {
                waiter.unpark();
            }
        }
    }

    /// Looks at the holds of every shard that has one due by `horizon`; `poll` answers when it is
    /// due again. Returns when the next look is due.
    pub(crate) fn scan(&self, horizon: u64, mut poll: impl FnMut(&Arc<H>) -> u64) -> u64 {
        let mut next = u64::MAX;
        for shard in self.shards() {
            let mut names = lock(&shard.0);
            if names.due <= horizon {
                names.due = names
                    .table
                    .iter()
                    .filter_map(|name| match &name.stage {
                        Stage::Held(hold) => Some(poll(hold)),
                        _ => None,
                    })
                    .min()
                    .unwrap_or(u64::MAX);
            }
            next = next.min(names.due);
        }
        next
    }
}

impl<K: Key, H, W, E> Names<K, H, W, E> {
    fn find(&mut self, key: &K) -> Option<&mut Name<K, H, W, E>> {
        self.table.find_mut(key.hash64(), |name| name.key == *key)
    }

    /// Makes the first waiter the head, or forgets the name if there is none.
    fn pass_head(&mut self, key: &K) -> Option<Arc<Waiter<H, W, E>>> {
        let mut entry = self
            .table
            .find_entry(key.hash64(), |name| name.key == *key)
            .ok()?;
        let name = entry.get_mut();
        let Some(waiter) = name.wait_queue.pop_front() else {
            entry.remove();
            return None;
        };
        name.stage = Stage::Asking;
        waiter.give(Given::HeadPermit);
        Some(waiter)
    }
}

impl<K, H, W, E> Name<K, H, W, E> {
    fn is_held_by(&self, hold: &Arc<H>) -> bool {
        matches!(&self.stage, Stage::Held(held) if Arc::ptr_eq(held, hold))
    }

    /// Records that the store showed the head a holder: single attempts end.
    fn record_holder(&mut self) -> Vec<Arc<Waiter<H, W, E>>> {
        self.holders_seen = self.holders_seen.wrapping_add(1);
        self.answer_single_attempts(&|| Given::Busy)
    }

    /// Gives the store's answer to the single attempts that wait for it.
    fn answer_single_attempts(
        &mut self,
        given: &dyn Fn() -> Given<H, E>,
    ) -> Vec<Arc<Waiter<H, W, E>>> {
        self.store_error = None;
        let mut gone = Vec::new();
        if self.wait_queue.iter().any(|waiter| waiter.once) {
            self.wait_queue.retain(|waiter| {
                if waiter.once {
                    waiter.give(given());
                    gone.push(Arc::clone(waiter));
                }
                !waiter.once
            });
        }
        gone
    }
}

impl<K, H, W, E: Clone> Name<K, H, W, E> {
    fn unserved(&self, waiter: &Waiter<H, W, E>) -> Unserved<E> {
        match &self.store_error {
            Some(error) => Unserved::Failed(error.clone()),
            None if self.holders_seen == waiter.before => Unserved::Silent,
            None => Unserved::Busy,
        }
    }
}

impl<H, W, E> Waiter<H, W, E> {
    fn give(&self, given: Given<H, E>) {
        lock(&self.slot).given = Some(given);
    }

    fn unpark(&self) {
        lock(&self.slot).unparked = true;
        self.condvar.notify_one();
    }
}

/// Wakes waiters that were given something; after the shard's mutex is free again, so that they do
/// not run into it.
fn notify<H, W, E>(waiters: impl IntoIterator<Item = Arc<Waiter<H, W, E>>>) {
    for waiter in waiters {
        waiter.condvar.notify_one();
    }
}

impl<H, W, E> Ticket<H, W, E> {
    /// Blocks until something is given, `limit` is over, or [`unpark`](Self::unpark) was called since
    /// the last look. `None` says nothing about why: look at clock and token, and
    /// [`leave`](Queue::leave) or wait on.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Given<H, E>> {
        let mut slot = lock(&self.0.slot);
        if slot.given.is_none() && !slot.unparked {
            slot = wait(&self.0.condvar, slot, limit);
        }
        slot.unparked = false;
        slot.given.take()
    }

    /// Has a waiting thread look at its cancel token.
    pub(crate) fn unpark(&self) {
        self.0.unpark();
    }
}

impl<H, W, E> Clone for Ticket<H, W, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
