//! A thread in the wait queue of a name, and what the queue gives it.

use std::time::Duration;

use super::hold::Hold;
use crate::error::Error;
use crate::options::LeaseTerms;
use crate::sync::{Arc, Condvar, Mutex, lock, wait};

/// What the queue gives to a thread that wants a name, once.
pub(crate) enum Given {
    /// The thread is the head: it alone asks the store.
    HeadPermit,
    /// The lease was handed over, to the guard with this number.
    Hold(Arc<Hold>, u32),
    /// Nothing: the wait is over.
    Nothing(Unserved),
}

/// Why a thread got nothing in its time.
pub(crate) enum Unserved {
    /// A holder has the name.
    Busy,
    /// A holder was seen while it waited, and has the name no more. The store has not replied since.
    Freed,
    /// The store failed the last head that asked.
    Failed(Error),
    /// The store has answered no head while the thread waited.
    Silent,
    /// A permit of `limit` was asked for while permits of another limit are held.
    LimitMismatch { limit: u32, held: u32 },
}

/// What ends a thread's wait in the queue, beside a grant and its deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// A single attempt ends as soon as a holder was seen, or the store has failed.
    SingleAttempt,
    /// It ends as soon as the store has failed.
    UntilFailure,
    /// Nothing.
    ThroughOutages,
}

pub(crate) struct Waiter {
    /// The lease that it wants.
    pub(super) terms: LeaseTerms,
    pub(super) kind: WaitKind,
    /// How many holders its name had seen before this waiter could have seen one.
    pub(super) seen_before: u64,
    slot: Mutex<Slot>,
    condvar: Condvar,
}

#[derive(Default)]
struct Slot {
    given: Option<Given>,
    unparked: bool,
}

impl Waiter {
    pub(super) fn new(terms: LeaseTerms, kind: WaitKind, seen_before: u64) -> Arc<Self> {
        Arc::new(Self {
            terms,
            kind,
            seen_before,
            slot: Mutex::new(Slot::default()),
            condvar: Condvar::new(),
        })
    }

    /// Gives something without a wake-up.
    fn give(&self, given: Given) {
        lock(&self.slot).given = Some(given);
    }

    /// Blocks until something is given, `limit` is over, or [`unpark`](Self::unpark) was called since
    /// the last call. `None` does not say why: check clock and cancel token, then wait on or
    /// leave the queue.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Given> {
        let mut slot = lock(&self.slot);
        if slot.given.is_none() && !slot.unparked {
            slot = wait(&self.condvar, slot, limit);
        }
        slot.unparked = false;
        slot.given.take()
    }

    /// Makes a waiting thread check the clock and its cancel token.
    pub(crate) fn unpark(&self) {
        lock(&self.slot).unparked = true;
        self.condvar.notify_one();
    }

    /// Takes what was given to a waiter that does not wait any more.
    pub(super) fn take(&self) -> Option<Given> {
        lock(&self.slot).given.take()
    }

    fn notify(&self) {
        self.condvar.notify_one();
    }
}

/// Waiters that were given something. They are woken after the shard's mutex is free again, so that they
/// do not run into it.
#[derive(Default)]
pub(super) struct Served(Option<Vec<Arc<Waiter>>>);

impl Served {
    /// Gives something to a waiter that is not in the queue any more.
    pub(super) fn give(&mut self, waiter: Arc<Waiter>, given: Given) {
        waiter.give(given);
        self.0.get_or_insert_default().push(waiter);
    }

    /// Wakes the waiters.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn notify(self) {
        if let Some(waiters) = self.0 {
            for waiter in waiters {
                waiter.notify();
            }
        }
    }
}
