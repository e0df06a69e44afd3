//! A shard of the in-process store: holders, expiry and waiters of a part of the names.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hashbrown::hash_table::{self, HashTable};
use lockkeeper_core::{AcquireRequest, Clock, Grant, HostInstant, LockName, Released, Renewal};

use super::epoch::EpochMint;
use crate::lock;

/// The longest time between two checks of a waiter. Condvar time-outs do not advance while the host is
/// suspended; leases do.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A grant of a [`MemoryProvider`](super::MemoryProvider).
#[derive(Debug)]
pub struct MemoryLease {
    /// Finds the name: no two grants of the process have the same epoch.
    pub(super) hash: u64,
    epoch: u64,
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

/// A held name. Code that ends a hold must grant the name to the next waiter or remove the entry.
struct Entry {
    name: LockName,
    epoch: u64,
    expires: HostInstant,
    waiters: VecDeque<Arc<Waiter>>,
}

/// A copy of an entry for the admin interface.
pub(super) struct EntryView {
    pub(super) name: LockName,
    pub(super) epoch: u64,
    pub(super) expires: HostInstant,
    pub(super) waiting: usize,
}

struct Waiter {
    ttl: Duration,
    state: Mutex<WaiterState>,
    changed: Condvar,
}

struct WaiterState {
    granted: Option<Grant<MemoryLease>>,
    /// The end of the current sleep.
    until: HostInstant,
    /// Whether the waiter must check again.
    unparked: bool,
}

impl Waiter {
    fn unpark(&self) {
        lock(&self.state).unparked = true;
        self.changed.notify_one();
    }
}

impl Entry {
    /// Starts a hold and returns its lease.
    fn grant(
        &mut self,
        ttl: Duration,
        now: HostInstant,
        epochs: &mut EpochMint,
    ) -> Grant<MemoryLease> {
        self.epoch = epochs.next(now);
        self.expires = now + ttl;
        Grant {
            lease: MemoryLease {
                hash: self.name.hash64(),
                epoch: self.epoch,
            },
            epoch: self.epoch,
            asked_at: now,
            slot: 0,
        }
    }

    /// Grants a name without a holder to the first waiter. Returns `false` if there is no waiter.
    fn grant_next(&mut self, now: HostInstant, epochs: &mut EpochMint) -> bool {
        let Some(waiter) = self.waiters.pop_front() else {
            return false;
        };
        let grant = self.grant(waiter.ttl, now, epochs);
        lock(&waiter.state).granted = Some(grant);
        waiter.changed.notify_one();
        self.unpark_front();
        true
    }

    /// Wakes the first waiter if the lease of the new holder ends before its sleep.
    fn unpark_front(&self) {
        if let Some(front) = self.waiters.front()
            && lock(&front.state).until > self.expires
        {
            front.unpark();
        }
    }
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

    /// Grants a name that is free or whose lease has expired, unless another thread waits for it.
    pub(super) fn attempt(
        &self,
        name: &LockName,
        ttl: Duration,
        now: HostInstant,
    ) -> Option<Grant<MemoryLease>> {
        let mut state = lock(&self.state);
        let ShardState { entries, epochs } = &mut *state;
        let slot = entries.entry(
            name.hash64(),
            |entry| entry.name == *name,
            |entry| entry.name.hash64(),
        );
        let entry = match slot {
            hash_table::Entry::Vacant(vacant) => vacant
                .insert(Entry {
                    name: name.clone(),
                    epoch: 0,
                    expires: now,
                    waiters: VecDeque::new(),
                })
                .into_mut(),
            hash_table::Entry::Occupied(occupied) => {
                let entry = occupied.into_mut();
                if now < entry.expires || entry.grant_next(now, epochs) {
                    return None;
                }
                entry
            }
        };
        Some(entry.grant(ttl, now, epochs))
    }

    /// Waits in the queue for a grant, until a cancellation or `deadline`.
    pub(super) fn wait(
        &self,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) -> Option<Grant<MemoryLease>> {
        let name = request.name();
        let waiter = Arc::new(Waiter {
            ttl: request.ttl(),
            state: Mutex::new(WaiterState {
                granted: None,
                until: HostInstant::NEVER,
                unparked: false,
            }),
            changed: Condvar::new(),
        });
        let _wake = request.cancel().map(|cancel| {
            let waiter = Arc::clone(&waiter);
            cancel.on_cancel(move || waiter.unpark())
        });
        let mut is_queued = false;
        loop {
            let mut shard = lock(&self.state);
            // Grants happen under the mutex of the shard, so none can follow this check.
            if let Some(grant) = lock(&waiter.state).granted.take() {
                return Some(grant);
            }
            let now = request.now();
            let over = now >= deadline || request.is_cancelled();
            let ShardState { entries, epochs } = &mut *shard;
            let Some(entry) = entries.find_mut(name.hash64(), |entry| entry.name == *name) else {
                // Released before this waiter was queued.
                drop(shard);
                if request.is_cancelled() {
                    return None;
                }
                match self.attempt(name, waiter.ttl, now) {
                    Some(grant) => return Some(grant),
                    None => continue,
                }
            };
            if !over && !is_queued {
                entry.waiters.push_back(Arc::clone(&waiter));
                is_queued = true;
            }
            if now >= entry.expires && entry.grant_next(now, epochs) {
                // The grant went to this waiter or to an earlier one.
                continue;
            }
            if over {
                let is_other = |other: &Arc<Waiter>| !Arc::ptr_eq(other, &waiter);
                let was_front = !entry.waiters.front().is_none_or(is_other);
                entry.waiters.retain(is_other);
                if was_front {
                    entry.unpark_front();
                }
                return None;
            }
            let until = entry.expires.min(deadline);
            let mut state = lock(&waiter.state);
            state.until = until;
            let unparked = std::mem::take(&mut state.unparked);
            drop(shard);
            if unparked || state.granted.is_some() {
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
        let found = |entry: &Entry| entry.epoch == lease.epoch;
        match state.entries.find_mut(lease.hash, found) {
            Some(entry) if now < entry.expires => {
                entry.expires = now + ttl;
                entry.unpark_front();
                Renewal::Renewed
            }
            _ => Renewal::Lost,
        }
    }

    pub(super) fn release(&self, lease: &MemoryLease, clock: &dyn Clock) -> Released {
        let mut state = lock(&self.state);
        let ShardState { entries, epochs } = &mut *state;
        let found = entries.find_entry(lease.hash, |entry| entry.epoch == lease.epoch);
        let Ok(mut occupied) = found else {
            return Released::AlreadyLost;
        };
        // The engine knows whether the release is late, by the deadline of the guard. The clock is read
        // only for the lease of the next waiter.
        let entry = occupied.get_mut();
        if entry.waiters.is_empty() || !entry.grant_next(clock.now(), epochs) {
            occupied.remove();
        }
        Released::Done
    }

    /// Takes a name from its holder. With `epoch`, takes it only from that holder.
    pub(super) fn evict(&self, name: &LockName, epoch: Option<u64>, now: HostInstant) -> bool {
        let mut state = lock(&self.state);
        let ShardState { entries, epochs } = &mut *state;
        let found = entries.find_entry(name.hash64(), |entry| {
            entry.name == *name && epoch.is_none_or(|epoch| entry.epoch == epoch)
        });
        let Ok(mut occupied) = found else {
            return false;
        };
        if !occupied.get_mut().grant_next(now, epochs) {
            occupied.remove();
        }
        true
    }

    /// Copies all entries, including expired ones.
    pub(super) fn view(&self) -> Vec<EntryView> {
        let state = lock(&self.state);
        let views = state.entries.iter().map(|entry| EntryView {
            name: entry.name.clone(),
            epoch: entry.epoch,
            expires: entry.expires,
            waiting: entry.waiters.len(),
        });
        views.collect()
    }

    pub(super) fn unpark_all(&self) {
        for entry in &lock(&self.state).entries {
            for waiter in &entry.waiters {
                waiter.unpark();
            }
        }
    }
}
