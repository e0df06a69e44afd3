//! A thread in the wait queue of a name, and what the queue gives it.

use std::time::Duration;

use super::hold::Hold;
use crate::error::Error;
use crate::options::LeaseTerms;
use crate::sync::{Arc, Condvar, Mutex, lock, wait};

/// The result that the queue gives to a thread that wants a name. Each thread gets one.
pub(crate) enum Given {
    /// The thread is the head: only the head asks the store.
    HeadPermit,
    /// The lease was handed over to the guard with this number.
    Hold(Arc<Hold>, u32),
    /// The wait is over without a grant.
    Nothing(Unserved),
}

/// The reason why a thread was not served during its wait.
pub(crate) enum Unserved {
    /// A holder has the name.
    Busy,
    /// A holder was seen during the wait, and has released the name. The store has not replied since.
    Freed,
    /// The last request of a head failed.
    Failed(Error),
    /// The store has not answered any head during the wait.
    Silent,
    /// A permit of `limit` was asked for while permits of another limit are held.
    LimitMismatch { limit: u32, held: u32 },
}

/// The events that end a thread's wait in the queue, beside a grant and its deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// A single attempt ends as soon as a holder was seen, or a request of the head failed.
    SingleAttempt,
    /// A single attempt that goes on through outages ends as soon as a holder was seen.
    AttemptThroughOutages,
    /// The wait ends as soon as a request of the head failed.
    UntilFailure,
    /// The wait ends only by a grant or its deadline.
    ThroughOutages,
}

impl WaitKind {
    /// Returns whether the wait ends as soon as a holder was seen.
    pub(super) fn is_attempt(self) -> bool {
        matches!(self, Self::SingleAttempt | Self::AttemptThroughOutages)
    }

    /// Returns whether the wait ends as soon as a request of the head failed.
    pub(super) fn ends_at_failure(self) -> bool {
        matches!(self, Self::SingleAttempt | Self::UntilFailure)
    }
}

pub(crate) struct Waiter {
    /// The lease that the thread asks for.
    pub(super) terms: LeaseTerms,
    pub(super) kind: WaitKind,
    /// The name's `holders_seen` when this thread entered the queue, without the holder that made the name
    /// busy then.
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

    /// Sets the result without a wake-up.
    fn give(&self, given: Given) {
        lock(&self.slot).given = Some(given);
    }

    /// Blocks until there is a result, `limit` is over, or [`unpark`](Self::unpark) was called since
    /// the last call. After `None`, check the clock and the cancel token, and then wait again or
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

    /// Takes the result of a waiter that no longer waits.
    pub(super) fn take(&self) -> Option<Given> {
        lock(&self.slot).given.take()
    }

    fn notify(&self) {
        self.condvar.notify_one();
    }
}

/// Waiters that have a result. They are woken when the shard's mutex is free again, so that they do not
/// block on it.
#[derive(Default)]
pub(super) struct Served(Option<Vec<Arc<Waiter>>>);

impl Served {
    /// Sets the result of a waiter that was taken out of the queue.
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
