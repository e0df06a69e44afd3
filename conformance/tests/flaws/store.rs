//! The store: its names with their holders and waiters, and what each flaw changes in them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::{Clock, Error, HostInstant, Mode, SystemClock, limit_mismatch};

use crate::Flaw::{self, *};

/// A namespace and a name, and whether it is about permits.
pub(crate) type Key = (String, String, bool);

#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) epoch: u64,
    pub(crate) until: HostInstant,
    pub(crate) mode: Mode,
    pub(crate) slot: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Name {
    pub(crate) holders: Vec<Holder>,
    pub(crate) queue: VecDeque<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) map: HashMap<Key, Name>,
    pub(crate) last_epoch: u64,
    last_ticket: u64,
    pub(crate) is_unreachable: bool,
}

impl Names {
    /// Queues another waiter.
    pub(crate) fn queue(&mut self, key: &Key) -> u64 {
        self.last_ticket += 1;
        let name = self.map.entry(key.clone()).or_default();
        name.queue.push_back(self.last_ticket);
        self.last_ticket
    }
}

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) flaw: Flaw,
    names: Mutex<Names>,
    pub(crate) changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct FlawedLease {
    pub(crate) key: Key,
    pub(crate) epoch: u64,
}

impl Store {
    pub(crate) fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Self {
            flaw,
            names: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    pub(crate) fn wake(&self) {
        if !self.has(WakesNoWaiter) {
            self.changed.notify_all();
        }
    }

    pub(crate) fn key(&self, namespace: &str, name: &str, mode: Mode) -> Key {
        let is_permit = mode.is_permit() && !self.has(JoinsPermitsAndLocks);
        let (namespace, name) = match self.flaw {
            FoldsCase => (namespace.to_owned(), name.to_lowercase()),
            TrimsNames => (namespace.to_owned(), name.trim().to_owned()),
            CutsNames => (namespace.to_owned(), name.chars().take(192).collect()),
            JoinsNamespaces => (String::new(), format!("{namespace}:{name}")),
            _ => (namespace.to_owned(), name.to_owned()),
        };
        (namespace, name, is_permit)
    }

    pub(crate) fn epoch(&self, names: &mut Names, mode: Mode, now: HostInstant) -> u64 {
        names.last_epoch = match self.flaw {
            MintsOneEpoch => 7,
            CountsFromOneAgain => names.last_epoch + 1,
            MintsNothingForReaders if mode == Mode::Shared => names.last_epoch.max(1),
            _ => (now.as_nanos() / 1_000).max(names.last_epoch + 1),
        };
        names.last_epoch
    }

    /// Returns the slot of a grant in `mode` beside `holders`, or `None` if they exclude it.
    pub(crate) fn admit(&self, holders: &[Holder], mode: Mode) -> Result<Option<u32>, Error> {
        let Some(first) = holders.first() else {
            return Ok(Some(0));
        };
        Ok(match (first.mode, mode) {
            _ if self.has(GrantsAlways) => Some(0),
            (Mode::Shared, Mode::Shared) => Some(0),
            (Mode::Exclusive, Mode::Shared) if self.has(GrantsReadersBesideWriters) => Some(0),
            (Mode::Permit { limit: held }, Mode::Permit { limit })
                if held != limit && !self.has(ForgetsLimits) =>
            {
                return Err(limit_mismatch(limit, held));
            }
            (Mode::Permit { .. }, Mode::Permit { limit }) => {
                let limit = limit + u32::from(self.has(CountsOnePermitMore));
                let is_free = |slot: &u32| holders.iter().all(|holder| holder.slot != *slot);
                match self.flaw {
                    CountsSlots => Some(holders.len() as u32).filter(|slot| *slot < limit),
                    _ => (0..limit).find(is_free),
                }
            }
            _ => None,
        })
    }

    /// Removes a name that is neither held nor waited for.
    pub(crate) fn tidy(&self, names: &mut Names, key: &Key) {
        let unused = |name: &Name| name.queue.is_empty() && name.holders.is_empty();
        if !self.has(KeepsRows) && names.map.get(key).is_some_and(unused) {
            names.map.remove(key);
        }
    }

    /// Lets `change` have the holders of a name and the position of a valid lease among them. Returns
    /// whether the lease is valid, which a store with `flaw` does not check.
    pub(crate) fn change(
        &self,
        lease: &FlawedLease,
        flaw: Flaw,
        change: impl FnOnce(&mut Vec<Holder>, usize),
    ) -> bool {
        let mut names = self.lock();
        let now = SystemClock.now();
        let is_valid = |holder: &Holder| {
            let is_own = holder.epoch == lease.epoch || flaw == ReleasesLeasesOfOthers;
            is_own && self.has(flaw) || holder.epoch == lease.epoch && now < holder.until
        };
        let holders = names.map.get_mut(&lease.key).map(|name| &mut name.holders);
        let found = holders.and_then(|holders| {
            let position = holders.iter().position(is_valid)?;
            Some((holders, position))
        });
        let is_held = found
            .map(|(holders, position)| change(holders, position))
            .is_some();
        self.tidy(&mut names, &lease.key);
        is_held
    }
}
