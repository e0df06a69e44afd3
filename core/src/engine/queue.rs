//! The queue inside the process: who of its threads talks to the store about a name, who holds,
//! and who is next.
//!
//! A table of names, each with a stage and a FIFO line of waiters. Every change of a name happens
//! under its shard's mutex, and that alone decides races such as "the wait ends while the lease is
//! handed over". The queue knows neither time nor store: what it cannot decide it is told. That is
//! why a model checker can run all of it (`tests/model.rs` compiles this very file).
//!
//! Lock order: a shard, then a waiter's slot. Closures that run under a shard's mutex must not
//! call the queue.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;

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
    line: VecDeque<Arc<Waiter<H, W, E>>>,
    /// Why the store did not answer the last head that asked.
    trouble: Option<E>,
    /// How often the store's answer to a head showed a holder, of this process or another.
    sightings: u64,
}

enum Stage<H> {
    /// The head asks the store, and its first answer is not there yet.
    Asking,
    /// The head waits in the store: somebody else holds.
    Contended,
    /// A guard of this process holds.
    Held(Arc<H>),
    /// The store is being given the lease back; then the next one's turn comes.
    Releasing,
}

struct Waiter<H, W, E> {
    wish: W,
    /// Goes as soon as it is known that somebody holds.
    once: bool,
    /// The name's `sightings` before this waiter could have seen one.
    before: u64,
    slot: Mutex<Slot<H, E>>,
    bell: Condvar,
}

struct Slot<H, E> {
    given: Option<Given<H, E>>,
    poked: bool,
}

/// What a waiter is given, once.
pub(crate) enum Given<H, E> {
    /// It is the head now, and asks the store.
    Turn,
    /// The lease was handed over.
    Hold(Arc<H>),
    /// Somebody holds, and this one would not wait.
    Busy,
    /// The store did not answer the head, and this one would not wait.
    Failed(E),
}

/// The first answer to a thread that wants a name.
pub(crate) enum Entered<H, W, E> {
    /// It is the head, and asks the store.
    Turn,
    /// Somebody holds, and it would not wait.
    Busy,
    /// It stands in line.
    Queued(Ticket<H, W, E>),
}

/// A place in a name's line.
pub(crate) struct Ticket<H, W, E>(Arc<Waiter<H, W, E>>);

/// What leaving the line found.
pub(crate) enum Left<H, E> {
    /// It was given something at that very moment, and has to deal with it.
    Given(Given<H, E>),
    /// The waiter is no longer in line.
    Gone(Unserved<E>),
}

/// Why a waiter got nothing in its time.
pub(crate) enum Unserved<E> {
    /// A holder was seen while it waited.
    Busy,
    /// The store failed the last head that asked.
    Failed(E),
    /// The store has answered nobody while it waited.
    Silent,
}

/// What is to be done with the lease of a guard that is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// Nothing: the next waiter has it.
    HandedOver,
    /// Give it back to the store, then call [`Queue::pass`]: until then nobody else asks for it.
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
            Place::Vacant(place) => {
                place.insert(Name {
                    key: key.clone(),
                    stage: Stage::Asking,
                    line: VecDeque::new(),
                    trouble: None,
                    sightings: 0,
                });
                Entered::Turn
            }
            Place::Occupied(mut place) => {
                let name = place.get_mut();
                if once && matches!(name.stage, Stage::Held(_) | Stage::Contended) {
                    return Entered::Busy;
                }
                let is_seen = !matches!(name.stage, Stage::Asking);
                let waiter = Arc::new(Waiter {
                    wish,
                    once,
                    before: name.sightings.wrapping_sub(u64::from(is_seen)),
                    slot: Mutex::new(Slot {
                        given: None,
                        poked: false,
                    }),
                    bell: Condvar::new(),
                });
                name.line.push_back(Arc::clone(&waiter));
                Entered::Queued(Ticket(waiter))
            }
        }
    }

    /// Leaves the line, because the wait is over or was cancelled.
    pub(crate) fn leave(&self, key: &K, ticket: &Ticket<H, W, E>) -> Left<H, E> {
        let mut names = self.names(key);
        let mut unserved = Unserved::Silent;
        if let Some(name) = names.find(key) {
            unserved = name.unserved(&ticket.0);
            name.line.retain(|waiter| !Arc::ptr_eq(waiter, &ticket.0));
        }
        match lock(&ticket.0.slot).given.take() {
            Some(given) => Left::Given(given),
            None => Left::Gone(unserved),
        }
    }

    /// Passes on the turn of a waiter whose wait was over when it came.
    pub(crate) fn decline(&self, key: &K, ticket: &Ticket<H, W, E>) -> Unserved<E> {
        let mut names = self.names(key);
        let unserved = names
            .find(key)
            .map_or(Unserved::Silent, |name| name.unserved(&ticket.0));
        let next = names.next_turn(key);
        drop(names);
        ring(next);
        unserved
    }

    /// The head saw that somebody else holds: those who would not wait go.
    pub(crate) fn contended(&self, key: &K) {
        let mut names = self.names(key);
        let mut gone = Vec::new();
        if let Some(name) = names.find(key)
            && matches!(name.stage, Stage::Asking)
        {
            name.stage = Stage::Contended;
            gone = name.sight();
        }
        drop(names);
        ring(gone);
    }

    /// The head was granted `hold`, which wants to be looked at when it is `due`.
    pub(crate) fn hold(&self, key: &K, hold: Arc<H>, due: u64) {
        let mut names = self.names(key);
        names.due = names.due.min(due);
        let mut gone = Vec::new();
        if let Some(name) = names.find(key) {
            name.stage = Stage::Held(hold);
            gone = name.sight();
        }
        drop(names);
        ring(gone);
    }

    /// The head steps down without a grant, or the lease is back in the store: the next one's turn.
    /// `trouble` is the error of a store that did not answer.
    pub(crate) fn pass(&self, key: &K, trouble: Option<E>) {
        let mut names = self.names(key);
        let mut gone = Vec::new();
        if let (Some(name), Some(error)) = (names.find(key), trouble) {
            gone = name.settle(&|| Given::Failed(error.clone()));
            name.trouble = Some(error);
        }
        let next = names.next_turn(key);
        drop(names);
        ring(gone);
        ring(next);
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
        if !name.line.front().is_some_and(|next| hand_over(&next.wish)) {
            name.stage = Stage::Releasing;
            return Finished::Release;
        }
        let next = name.line.pop_front();
        if let Some(waiter) = &next {
            waiter.give(Given::Hold(Arc::clone(hold)));
        }
        drop(names);
        ring(next);
        Finished::HandedOver
    }

    /// Takes the name from a hold that is lost, whoever still has its guard: the next one's turn.
    pub(crate) fn detach(&self, key: &K, hold: &Arc<H>) {
        let mut names = self.names(key);
        let mut next = None;
        if names.find(key).is_some_and(|name| name.is_held_by(hold)) {
            next = names.next_turn(key);
        }
        drop(names);
        ring(next);
    }

    /// Has a hold looked at when it is `due`, if the name is still its own.
    pub(crate) fn touch(&self, key: &K, due: u64) {
        let mut names = self.names(key);
        names.due = names.due.min(due);
    }

    /// Has every waiter look at the clock and at its cancel token.
    pub(crate) fn poke_all(&self) {
        for shard in self.shards() {
            let names = lock(&shard.0);
            let waiting: Vec<_> = names
                .table
                .iter()
                .flat_map(|name| name.line.iter().cloned())
                .collect();
            drop(names);
            for waiter in waiting {
                waiter.poke();
            }
        }
    }

    /// Looks at the holds of every shard that has one due by `horizon`; `look` answers when it is
    /// due again. Returns when the next look is due.
    pub(crate) fn scan(&self, horizon: u64, mut look: impl FnMut(&Arc<H>) -> u64) -> u64 {
        let mut next = u64::MAX;
        for shard in self.shards() {
            let mut names = lock(&shard.0);
            if names.due <= horizon {
                names.due = names
                    .table
                    .iter()
                    .filter_map(|name| match &name.stage {
                        Stage::Held(hold) => Some(look(hold)),
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

    /// Makes the first of the line the head, or forgets the name where nobody waits.
    fn next_turn(&mut self, key: &K) -> Option<Arc<Waiter<H, W, E>>> {
        let mut place = self
            .table
            .find_entry(key.hash64(), |name| name.key == *key)
            .ok()?;
        let name = place.get_mut();
        let Some(waiter) = name.line.pop_front() else {
            place.remove();
            return None;
        };
        name.stage = Stage::Asking;
        waiter.give(Given::Turn);
        Some(waiter)
    }
}

impl<K, H, W, E> Name<K, H, W, E> {
    fn is_held_by(&self, hold: &Arc<H>) -> bool {
        matches!(&self.stage, Stage::Held(held) if Arc::ptr_eq(held, hold))
    }

    /// The store showed the head a holder: those who would not wait go.
    fn sight(&mut self) -> Vec<Arc<Waiter<H, W, E>>> {
        self.sightings = self.sightings.wrapping_add(1);
        self.settle(&|| Given::Busy)
    }

    /// The store has answered the head, or will not: those who would not wait get theirs too.
    fn settle(&mut self, given: &dyn Fn() -> Given<H, E>) -> Vec<Arc<Waiter<H, W, E>>> {
        self.trouble = None;
        let mut gone = Vec::new();
        if self.line.iter().any(|waiter| waiter.once) {
            self.line.retain(|waiter| {
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
        match &self.trouble {
            Some(error) => Unserved::Failed(error.clone()),
            None if self.sightings == waiter.before => Unserved::Silent,
            None => Unserved::Busy,
        }
    }
}

impl<H, W, E> Waiter<H, W, E> {
    fn give(&self, given: Given<H, E>) {
        lock(&self.slot).given = Some(given);
    }

    fn poke(&self) {
        lock(&self.slot).poked = true;
        self.bell.notify_one();
    }
}

/// Wakes those who were given something; after the shard's mutex is free again, so that they do
/// not run into it.
fn ring<H, W, E>(waiters: impl IntoIterator<Item = Arc<Waiter<H, W, E>>>) {
    for waiter in waiters {
        waiter.bell.notify_one();
    }
}

impl<H, W, E> Ticket<H, W, E> {
    /// Blocks until something is given, `limit` is over, or [`poke`](Self::poke) was called since
    /// the last look. `None` says nothing about why: look at clock and token, and
    /// [`leave`](Queue::leave) or wait on.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Given<H, E>> {
        let mut slot = lock(&self.0.slot);
        if slot.given.is_none() && !slot.poked {
            slot = wait(&self.0.bell, slot, limit);
        }
        slot.poked = false;
        slot.given.take()
    }

    /// Has a waiting thread look at its cancel token.
    pub(crate) fn poke(&self) {
        self.0.poke();
    }
}

impl<H, W, E> Clone for Ticket<H, W, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
