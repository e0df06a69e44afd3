//! The keys of advisory locks: numbers of 64 bits, by which different names are different locks.
//!
//! The names of two locks have the same key with a probability of 2^-63, and two semaphores with 2^-43. Then one
//! waits for the other: that costs time, and no exclusion.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use lockkeeper_core::Mode;
use lockkeeper_remote::sessions::SessionName;
use sha2::{Digest, Sha256};

use crate::shown;

/// The largest limit of a semaphore.
pub(crate) const MAX_PERMITS: u32 = 1_000;

/// The bits of a permit's slot, and those of its limit.
const PART: u32 = 10;
const PART_MASK: u64 = (1 << PART) - 1;
/// The bits of a key that tell the locks of one semaphore apart.
const PARTS: u64 = (1 << (2 * PART)) - 1;
/// Set in the keys of semaphores.
const SEMAPHORE: u64 = 1 << 63;
/// The slot of the bell, beside the limit 0. The gate has the slot 0.
const BELL: u64 = 1;

/// The key of an advisory lock, what it is the key of, and whether it is for a shared lock.
///
/// A key of a semaphore has 43 bits of the name's hash, the limit and the slot. The gate and the bell have no limit.
#[derive(Clone, Debug)]
pub struct LockKey {
    key: u64,
    pub(crate) is_shared: bool,
    /// Namespace and name without spaces, and empty if the key is all that is known.
    pub(crate) shown: Arc<str>,
}

/// A session never has a lock in both modes: PostgreSQL would grant one beside the other.
impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for LockKey {}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl LockKey {
    /// Returns the key from the halves that `pg_locks` shows.
    pub(crate) fn of_halves([classid, objid]: [u32; 2]) -> Self {
        Self {
            key: u64::from(classid) << 32 | u64::from(objid),
            is_shared: false,
            shown: Arc::default(),
        }
    }

    /// Returns the halves that `pg_locks` shows.
    pub(crate) fn halves(&self) -> [u64; 2] {
        [self.key >> 32, self.key & u64::from(u32::MAX)]
    }

    /// Returns the key as PostgreSQL takes it.
    pub(crate) fn number(&self) -> i64 {
        self.key.cast_signed()
    }

    /// Returns another key of the semaphore.
    fn with(&self, key: u64) -> Self {
        let shown = Arc::clone(&self.shown);
        Self {
            key,
            is_shared: false,
            shown,
        }
    }

    /// Returns the lease of a permit, of the semaphore of which this is the gate.
    pub(crate) fn permit(&self, limit: u32, slot: u32) -> Self {
        self.with(self.key | u64::from(limit) << PART | u64::from(slot))
    }

    /// Returns whether this is a key of a semaphore.
    pub(crate) fn is_of_semaphore(&self) -> bool {
        self.key & SEMAPHORE != 0
    }

    /// Returns whether this is the bell of a semaphore.
    pub(crate) fn is_bell(&self) -> bool {
        self.key & (SEMAPHORE | PARTS) == SEMAPHORE | BELL
    }

    /// Returns limit and slot if this is the lease of a permit.
    pub(crate) fn of_permit(&self) -> Option<(u32, u32)> {
        let (limit, slot) = (self.key >> PART & PART_MASK, self.key & PART_MASK);
        let is_permit = self.is_of_semaphore() && limit > 0;
        let part = |part: u64| u32::try_from(part).ok();
        part(limit).zip(part(slot)).filter(|_| is_permit)
    }
}

impl SessionName for LockKey {
    fn requested(namespace: &str, name: &str, mode: Mode) -> Self {
        // No byte of UTF-8 is 0xFF: namespace and name stay apart.
        let hash = Sha256::new()
            .chain_update(namespace)
            .chain_update([0xff])
            .chain_update(name)
            .finalize();
        let first = hash
            .first_chunk()
            .map_or(0, |first| u64::from_be_bytes(*first));
        let key = match mode.is_permit() {
            true => (first | SEMAPHORE) & !PARTS,
            false => first & !SEMAPHORE,
        };
        Self {
            key,
            is_shared: mode == Mode::Shared,
            shown: shown::encode(namespace, name),
        }
    }

    fn gate(&self) -> Option<Self> {
        self.is_of_semaphore().then(|| self.with(self.key & !PARTS))
    }

    fn is_akin(&self, other: &Self) -> bool {
        match self.key & other.key & SEMAPHORE {
            0 => self == other,
            _ => self.key & !PARTS == other.key & !PARTS,
        }
    }

    fn bell(&self) -> Self {
        self.with(self.key | BELL)
    }
}

/// Returns a hash of a namespace, by which sessions say which namespace their locks are of.
pub(crate) fn namespace_mark(namespace: &str) -> i32 {
    let hash = Sha256::digest(namespace);
    let first = hash.first_chunk();
    first.map_or(0, |first| i32::from_be_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_and_semaphore_of_a_name_are_apart() {
        let lock = LockKey::requested("shop", "a", Mode::Exclusive);
        let shared = LockKey::requested("shop", "a", Mode::Shared);
        let gate = LockKey::requested("shop", "a", Mode::Permit { limit: 3 });
        assert_eq!(lock, shared);
        assert!(shared.is_shared && !lock.is_akin(&gate) && !gate.is_akin(&lock));
        assert_ne!(lock, LockKey::requested("sho", "pa", Mode::Exclusive));
        assert_eq!(
            gate,
            LockKey::requested("shop", "a", Mode::Permit { limit: 9 })
        );
    }

    #[test]
    fn keys_of_a_semaphore_say_what_they_are() {
        let gate = LockKey::requested("shop", "a", Mode::Permit { limit: 3 });
        let permit = gate.permit(MAX_PERMITS, MAX_PERMITS - 1);
        assert_eq!(permit.of_permit(), Some((MAX_PERMITS, MAX_PERMITS - 1)));
        assert_eq!(gate.permit(1, 0).of_permit(), Some((1, 0)));
        for key in [gate.clone(), gate.bell(), permit.clone()] {
            assert_eq!(key.gate().as_ref(), Some(&gate));
            assert!(key.is_akin(&permit));
        }
        assert_ne!(gate.bell(), gate);
        assert_eq!(gate.bell().of_permit(), None);
        let lock = LockKey::requested("shop", "a", Mode::Exclusive);
        assert_eq!((lock.gate(), lock.of_permit()), (None, None));
        let halves = permit.halves().map(|half| u32::try_from(half).unwrap());
        assert_eq!(LockKey::of_halves(halves), permit);
    }
}
