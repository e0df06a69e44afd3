//! A part of the names of a store in memory: who holds, until when, and who waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use lockkeeper_core::{AcquireRequest, Clock, HostInstant, LockName, Released, Renewal};

/// A waiter looks after this long even if nobody woke it: condition variables do not count the
/// time that the host sleeps, leases do.
const LOOK: Duration = Duration::from_secs(1);

/// Locks, also after a panic elsewhere: every critical section here leaves its data whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts at the wall clock in eighths of a microsecond, which 56 bits hold until 2255. A process
/// does not grant eight million times a second for all of its life, so a later process's epochs
/// are larger, and no grant needs to read a clock for its epoch.
static EPOCH: LazyLock<AtomicU64> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    AtomicU64::new(u64::try_from(micros.saturating_mul(8)).unwrap_or(1).max(1))
});

fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// A part of the names. Padded, so that two busy ones do not share a cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Shard {
    entries: Mutex<HashTable<Entry>>,
}

/// A name that is held. Who leaves one without a holder serves the next waiter or removes it.
struct Entry {
    name: LockName,
    epoch: u64,
    expires: HostInstant,
    waiters: VecDeque<Arc<Waiter>>,
}

/// An entry as it was.
pub(super) struct Seen {
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
    won: Option<Won>,
    /// Until when it would sleep.
    until: HostInstant,
    /// "Look again."
    poked: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Won {
    pub(super) epoch: u64,
    pub(super) asked_at: HostInstant,
}

impl Waiter {
    fn poke(&self) {
        lock(&self.state).poked = true;
        self.changed.notify_one();
    }
}

impl Entry {
    /// Grants a name that nobody holds to the front of the line. False: there is no line.
    fn serve(&mut self, now: HostInstant) -> bool {
        let Some(waiter) = self.waiters.pop_front() else {
            return false;
        };
        self.epoch = next_epoch();
        self.expires = now + waiter.ttl;
        let mut state = lock(&waiter.state);
        state.won = Some(Won {
            epoch: self.epoch,
            asked_at: now,
        });
        drop(state);
        waiter.changed.notify_one();
        self.wake_early();
        true
    }

    /// Whoever stands in front now went to sleep with an earlier holder in mind; this one's lease
    /// may end sooner.
    fn wake_early(&self) {
        if let Some(front) = self.waiters.front()
            && lock(&front.state).until > self.expires
        {
            front.poke();
        }
    }
}

impl Shard {
    fn find<'a>(entries: &'a mut HashTable<Entry>, name: &LockName) -> Option<&'a mut Entry> {
        entries.find_mut(name.hash64(), |entry| entry.name == *name)
    }

    /// The name's epoch, if it is free (or its lease ran out) and nobody waits for it.
    pub(super) fn attempt(&self, name: &LockName, ttl: Duration, now: HostInstant) -> Option<u64> {
        let mut entries = lock(&self.entries);
        let slot = entries.entry(
            name.hash64(),
            |entry| entry.name == *name,
            |entry| entry.name.hash64(),
        );
        let epoch = match slot {
            Slot::Vacant(vacant) => {
                let epoch = next_epoch();
                vacant.insert(Entry {
                    name: name.clone(),
                    epoch,
                    expires: now + ttl,
                    waiters: VecDeque::new(),
                });
                epoch
            }
            Slot::Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                if now < entry.expires || entry.serve(now) {
                    return None;
                }
                entry.epoch = next_epoch();
                entry.expires = now + ttl;
                entry.epoch
            }
        };
        Some(epoch)
    }

    /// Stands in line until granted, cancelled or `deadline`.
    pub(super) fn wait(&self, request: &AcquireRequest<'_>, deadline: HostInstant) -> Option<Won> {
        let name = request.name();
        let waiter = Arc::new(Waiter {
            ttl: request.ttl(),
            state: Mutex::new(WaiterState {
                won: None,
                until: HostInstant::NEVER,
                poked: false,
            }),
            changed: Condvar::new(),
        });
        let _wake = request.cancel().map(|cancel| {
            let waiter = Arc::clone(&waiter);
            cancel.on_cancel(move || waiter.poke())
        });
        let mut in_line = false;
        loop {
            let mut entries = lock(&self.entries);
            // Grants happen under the shard's mutex: this is the moment that decides.
            if let Some(won) = lock(&waiter.state).won {
                return Some(won);
            }
            let now = request.now();
            let over = now >= deadline || request.is_cancelled();
            let Some(entry) = Self::find(&mut entries, name) else {
                // Released before this one stood in line: no entry, so no line either.
                drop(entries);
                if request.is_cancelled() {
                    return None;
                }
                let epoch = self.attempt(name, waiter.ttl, now);
                match epoch {
                    Some(epoch) => {
                        return Some(Won {
                            epoch,
                            asked_at: now,
                        });
                    }
                    None => continue,
                }
            };
            if !over && !in_line {
                entry.waiters.push_back(Arc::clone(&waiter));
                in_line = true;
            }
            if now >= entry.expires && entry.serve(now) {
                // To this one or to one before it.
                continue;
            }
            if over {
                let was_front = entry
                    .waiters
                    .front()
                    .is_some_and(|it| Arc::ptr_eq(it, &waiter));
                entry.waiters.retain(|it| !Arc::ptr_eq(it, &waiter));
                if was_front {
                    entry.wake_early();
                }
                return None;
            }
            let until = entry.expires.min(deadline);
            let mut state = lock(&waiter.state);
            state.until = until;
            let poked = std::mem::take(&mut state.poked);
            drop(entries);
            if poked || state.won.is_some() {
                continue;
            }
            let limit = until.saturating_since(now).min(LOOK);
            let woken = waiter
                .changed
                .wait_timeout_while(state, limit, |state| state.won.is_none() && !state.poked);
            drop(woken);
        }
    }

    pub(super) fn renew(&self, hash: u64, epoch: u64, ttl: Duration, now: HostInstant) -> Renewal {
        let mut entries = lock(&self.entries);
        match entries.find_mut(hash, |entry| entry.epoch == epoch) {
            Some(entry) if now < entry.expires => {
                entry.expires = now + ttl;
                entry.wake_early();
                Renewal::Renewed
            }
            _ => Renewal::Lost,
        }
    }

    pub(super) fn release(&self, hash: u64, epoch: u64, clock: &dyn Clock) -> Released {
        let mut entries = lock(&self.entries);
        let found = entries.find_entry(hash, |entry| entry.epoch == epoch);
        let Ok(mut occupied) = found else {
            return Released::AlreadyLost;
        };
        // Whether it is late is known to the engine, by the guard's own deadline: the clock is
        // read only for the next one's lease.
        let entry = occupied.get_mut();
        if entry.waiters.is_empty() || !entry.serve(clock.now()) {
            occupied.remove();
        }
        Released::Done
    }

    /// Takes a name from whoever holds it; with `epoch`, from that holder only.
    pub(super) fn evict(&self, name: &LockName, epoch: Option<u64>, now: HostInstant) -> bool {
        let mut entries = lock(&self.entries);
        let found = entries.find_entry(name.hash64(), |entry| {
            entry.name == *name && epoch.is_none_or(|epoch| entry.epoch == epoch)
        });
        let Ok(mut occupied) = found else {
            return false;
        };
        if !occupied.get_mut().serve(now) {
            occupied.remove();
        }
        true
    }

    /// All entries as they are, those whose lease ran out included.
    pub(super) fn view(&self) -> Vec<Seen> {
        let entries = lock(&self.entries);
        let seen = entries.iter().map(|entry| Seen {
            name: entry.name.clone(),
            epoch: entry.epoch,
            expires: entry.expires,
            waiting: entry.waiters.len(),
        });
        seen.collect()
    }

    #[cfg(test)]
    pub(super) fn waiting(&self, name: &LockName) -> usize {
        let mut entries = lock(&self.entries);
        Self::find(&mut entries, name).map_or(0, |entry| entry.waiters.len())
    }

    pub(super) fn poke_all(&self) {
        for entry in lock(&self.entries).iter() {
            for waiter in &entry.waiters {
                waiter.poke();
            }
        }
    }
}
