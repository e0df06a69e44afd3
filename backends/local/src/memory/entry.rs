//! A name of the in-process store: its holders, its waiters, and which of them are granted it together.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lockkeeper_core::{Error, Grant, HostInstant, LockName, Mode, limit_mismatch};
use smallvec::SmallVec;

use super::epoch::EpochMint;
use super::wait_queue::MemoryLease;
use crate::lock;

/// The lock or the semaphore of a name. It has a holder: code that ends a hold calls
/// [`serve`](Self::serve), and removes the entry if it has no holder then.
pub(super) struct Entry {
    pub(super) name: LockName,
    /// The mode of all holders.
    pub(super) mode: Mode,
    /// In the order of their slots. One holder, of an exclusive lock, needs no allocation.
    pub(super) holders: SmallVec<[Holder; 1]>,
    pub(super) waiters: VecDeque<Arc<Waiter>>,
}

/// A lease, which may have expired.
pub(super) struct Holder {
    pub(super) epoch: u64,
    pub(super) expires: HostInstant,
    /// 0 unless it is a permit.
    pub(super) slot: u32,
}

pub(super) struct Waiter {
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) state: Mutex<WaiterState>,
    pub(super) changed: Condvar,
}

pub(super) struct WaiterState {
    pub(super) granted: Option<Grant<MemoryLease>>,
    /// The end of the current sleep; 0 before the first.
    pub(super) until: HostInstant,
    /// Whether the waiter must check again.
    pub(super) unparked: bool,
}

/// Makes a lease of the name with this hash, and its grant.
pub(super) fn grant(
    hash: u64,
    slot: u32,
    ttl: Duration,
    now: HostInstant,
    epoch: u64,
) -> (Holder, Grant<MemoryLease>) {
    let holder = Holder {
        epoch,
        expires: now + ttl,
        slot,
    };
    let grant = Grant {
        lease: MemoryLease { hash, epoch },
        epoch,
        asked_at: now,
        slot,
    };
    (holder, grant)
}

impl Waiter {
    pub(super) fn new(mode: Mode, ttl: Duration) -> Self {
        Self {
            mode,
            ttl,
            state: Mutex::new(WaiterState {
                granted: None,
                until: HostInstant::from_nanos(0),
                unparked: false,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn unpark(&self) {
        lock(&self.state).unparked = true;
        self.changed.notify_one();
    }
}

impl Entry {
    /// Returns whether this is the lock, or the semaphore, of which a request in `mode` asks for `name`.
    pub(super) fn is_of(&self, name: &LockName, mode: Mode) -> bool {
        self.mode.is_permit() == mode.is_permit() && self.name == *name
    }

    pub(super) fn has(&self, epoch: u64) -> bool {
        self.holders.iter().any(|holder| holder.epoch == epoch)
    }

    /// Returns the slot of a grant in `mode` beside the present holders, or `None` if they do not admit it.
    ///
    /// # Errors
    /// If they hold permits of another limit.
    pub(super) fn admit(&self, mode: Mode) -> Result<Option<u32>, Error> {
        if self.holders.is_empty() {
            return Ok(Some(0));
        }
        match (self.mode, mode) {
            (Mode::Shared, Mode::Shared) => Ok(Some(0)),
            (Mode::Permit { limit: held }, Mode::Permit { limit }) if held != limit => {
                Err(limit_mismatch(limit, held))
            }
            (Mode::Permit { limit }, Mode::Permit { .. }) => {
                let mut held = self.holders.iter();
                let is_free = |slot: &u32| held.next().is_none_or(|holder| holder.slot != *slot);
                Ok((0..limit).find(is_free))
            }
            _ => Ok(None),
        }
    }

    /// Adds a holder with a slot that [`admit`](Self::admit) has returned.
    pub(super) fn add(&mut self, mode: Mode, holder: Holder) {
        self.mode = mode;
        // All smaller slots are held.
        self.holders.insert(holder.slot as usize, holder);
    }

    /// Removes the expired holders, and then grants the name to one waiter after the other until the next one
    /// is not admitted.
    ///
    /// A waiter never meets permits of another limit. It was queued while permits of its own limit were held, and the
    /// waiters before it have that limit, too.
    pub(super) fn serve(&mut self, now: HostInstant, epochs: &mut EpochMint) {
        self.holders.retain(|holder| now < holder.expires);
        while let Some(waiter) = self.waiters.front()
            && let Ok(Some(slot)) = self.admit(waiter.mode)
            && let Some(waiter) = self.waiters.pop_front()
        {
            let epoch = epochs.next(now);
            let (holder, grant) = grant(self.name.hash64(), slot, waiter.ttl, now, epoch);
            self.add(waiter.mode, holder);
            lock(&waiter.state).granted = Some(grant);
            waiter.changed.notify_one();
        }
        self.unpark_front();
    }

    /// Wakes the first waiter if a lease ends before its sleep.
    pub(super) fn unpark_front(&self) {
        if let Some(front) = self.waiters.front()
            && lock(&front.state).until > self.next_expiry()
        {
            front.unpark();
        }
    }

    /// Returns when the first lease ends.
    pub(super) fn next_expiry(&self) -> HostInstant {
        let expires = self.holders.iter().map(|holder| holder.expires);
        expires.min().unwrap_or(HostInstant::NEVER)
    }
}
