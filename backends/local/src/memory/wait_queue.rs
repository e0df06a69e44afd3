//! A shard of the in-process store: the holders, expiry times and waiters of a part of the names.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashbrown::hash_table::{self, HashTable};
use lockkeeper_core::{
    AcquireRequest, Clock, Error, Grant, HostInstant, LockName, Mode, Released, Renewal,
};
use smallvec::SmallVec;

use super::entry::{Entry, Holder, Waiter, grant};
use super::epoch::EpochMint;
use crate::lock;

/// The longest time between two checks of a waiter. Condvar time-outs do not advance while the host is
/// suspended; leases do.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A grant of a [`MemoryProvider`](super::MemoryProvider).
#[derive(Debug)]
pub struct MemoryLease {
    /// The hash of the name. With the epoch it finds the entry, since no two grants of a shard have the same
    /// epoch.
    pub(super) hash: u64,
    pub(super) epoch: u64,
}

/// A part of the names. The alignment keeps two shards out of one cache line.
#[repr(align(128))]
pub(super) struct Shard {
    state: Mutex<ShardState>,
}

struct ShardState {
    entries: HashTable<Entry>,
    epochs: EpochMint,
}

/// A lease for the admin interface. It may have expired.
pub(super) struct LeaseView {
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) lease: MemoryLease,
    pub(super) slot: u32,
    pub(super) expires: HostInstant,
    /// The number of waiters for the name.
    pub(super) waiting: usize,
}

impl Shard {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            state: Mutex::new(ShardState {
                entries: HashTable::new(),
                epochs: EpochMint::new(Arc::clone(clock)),
            }),
        }
    }

    /// Grants a name if its holders admit the mode and no other thread waits for the name. Otherwise
    /// queues `waiter`.
    ///
    /// # Errors
    /// Permits of another limit are held, or the epoch that the request proposes is too small.
    pub(super) fn attempt(
        &self,
        request: &AcquireRequest<'_>,
        now: HostInstant,
        waiter: Option<&Arc<Waiter>>,
    ) -> Result<Option<Grant<MemoryLease>>, Error> {
        let (name, mode, ttl) = (request.name(), request.mode(), request.ttl());
        let mut state = lock(&self.state);
        let ShardState { entries, epochs } = &mut *state;
        let found = entries.entry(
            name.hash64(),
            |entry| entry.is_of(name, mode),
            |entry| entry.name.hash64(),
        );
        let entry = match found {
            hash_table::Entry::Vacant(vacant) => {
                let epoch = epochs.of(request, now)?;
                let (holder, grant) = grant(name.hash64(), 0, ttl, now, epoch);
                vacant.insert(Entry {
                    name: name.clone(),
                    mode,
                    holders: SmallVec::from_buf([holder]),
                    waiters: VecDeque::new(),
                });
                return Ok(Some(grant));
            }
            hash_table::Entry::Occupied(occupied) => occupied.into_mut(),
        };
        entry.serve(now, epochs);
        match entry.admit(mode)? {
            Some(slot) if entry.waiters.is_empty() => {
                let epoch = epochs.of(request, now)?;
                let (holder, grant) = grant(name.hash64(), slot, ttl, now, epoch);
                entry.add(mode, holder);
                Ok(Some(grant))
            }
            _ => {
                entry.waiters.extend(waiter.map(Arc::clone));
                Ok(None)
            }
        }
    }

    /// Waits in the queue for a grant, until `deadline` or a cancellation.
    ///
    /// # Errors
    /// Permits of another limit are held.
    pub(super) fn wait(
        &self,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) -> Result<Option<Grant<MemoryLease>>, Error> {
        let (name, mode) = (request.name(), request.mode());
        let waiter = Arc::new(Waiter::new(mode, request.ttl()));
        let _wake = request.cancel().map(|cancel| {
            let waiter = Arc::clone(&waiter);
            cancel.on_cancel(move || waiter.unpark())
        });
        let granted = self.attempt(request, request.now(), Some(&waiter))?;
        if granted.is_some() {
            return Ok(granted);
        }
        loop {
            let mut shard = lock(&self.state);
            let now = request.now();
            let ShardState { entries, epochs } = &mut *shard;
            let Some(entry) = entries.find_mut(name.hash64(), |entry| entry.is_of(name, mode))
            else {
                // An entry with waiters stays, so this waiter is no longer queued: it was granted a lease,
                // which has ended since.
                return Ok(lock(&waiter.state).granted.take());
            };
            entry.serve(now, epochs);
            let mut state = lock(&waiter.state);
            if let Some(grant) = state.granted.take() {
                return Ok(Some(grant));
            }
            if now >= deadline || request.is_cancelled() {
                drop(state);
                entry.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
                // The next waiter may be admitted where this one was not.
                entry.serve(now, epochs);
                return Ok(None);
            }
            let until = entry.next_expiry().min(deadline);
            state.until = until;
            let unparked = std::mem::take(&mut state.unparked);
            drop(shard);
            if unparked {
                continue;
            }
            let limit = until.saturating_since(now).min(POLL_INTERVAL);
            let woken = waiter.changed.wait_timeout_while(state, limit, |state| {
                state.granted.is_none() && !state.unparked
            });
            drop(woken);
        }
    }

    pub(super) fn renew(&self, lease: &MemoryLease, ttl: Duration, now: HostInstant) -> Renewal {
        let mut state = lock(&self.state);
        let found = |entry: &Entry| entry.has(lease.epoch);
        let Some(entry) = state.entries.find_mut(lease.hash, found) else {
            return Renewal::Lost;
        };
        let is_live = |holder: &&mut Holder| holder.epoch == lease.epoch && now < holder.expires;
        let Some(holder) = entry.holders.iter_mut().find(is_live) else {
            return Renewal::Lost;
        };
        holder.expires = now + ttl;
        entry.unpark_front();
        Renewal::Renewed
    }

    pub(super) fn release(&self, lease: &MemoryLease, clock: &dyn Clock) -> Released {
        let mut state = lock(&self.state);
        let ShardState { entries, epochs } = &mut *state;
        let found = entries.find_entry(lease.hash, |entry| entry.has(lease.epoch));
        let Ok(mut occupied) = found else {
            return Released::AlreadyLost;
        };
        // The guard's deadline tells the engine whether the release is late. So the clock is read only for
        // other leases of the name.
        let entry = occupied.get_mut();
        if entry.holders.len() > 1 || !entry.waiters.is_empty() {
            entry.holders.retain(|holder| holder.epoch != lease.epoch);
            entry.serve(clock.now(), epochs);
            if !entry.holders.is_empty() {
                return Released::Done;
            }
        }
        occupied.remove();
        Released::Done
    }

    /// Copies all leases, including expired ones.
    pub(super) fn view(&self) -> Vec<LeaseView> {
        let state = lock(&self.state);
        let mut views = Vec::new();
        for entry in &state.entries {
            views.extend(entry.holders.iter().map(|holder| LeaseView {
                name: entry.name.clone(),
                mode: entry.mode,
                lease: MemoryLease {
                    hash: entry.name.hash64(),
                    epoch: holder.epoch,
                },
                slot: holder.slot,
                expires: holder.expires,
                waiting: entry.waiters.len(),
            }));
        }
        views
    }

    pub(super) fn unpark_all(&self) {
        for entry in &lock(&self.state).entries {
            for waiter in &entry.waiters {
                waiter.unpark();
            }
        }
    }
}
