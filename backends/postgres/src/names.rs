//! The keys of advisory locks: numbers of 64 bits that differ for different names.
//!
//! The names of two locks have the same key with a probability of 2^-63. Then one waits for the other, but no
//! exclusion is lost.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use lockkeeper_core::Mode;
use lockkeeper_sessions::SessionName;
use sha2::{Digest, Sha256};

pub(crate) mod shown;

/// The bits of a key. The highest one is clear, so that keys are positive numbers.
const KEY: u64 = u64::MAX >> 1;

/// The key of an advisory lock, its namespace and name, and whether the lock is shared.
#[derive(Clone, Debug)]
pub struct LockKey {
    key: u64,
    pub(crate) is_shared: bool,
    /// Namespace and name without spaces. Empty if only the key is known.
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
    /// Returns the key with this number.
    pub(crate) fn of_number(key: u64) -> Self {
        Self {
            key,
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
        Self {
            key: first & KEY,
            is_shared: mode == Mode::Shared,
            shown: shown::encode(namespace, name),
        }
    }
}

/// Returns a hash of a namespace, by which sessions show the namespace of their locks.
pub(crate) fn namespace_mark(namespace: &str) -> i32 {
    let hash = Sha256::digest(namespace);
    let first = hash.first_chunk();
    first.map_or(0, |first| i32::from_be_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_keys_of_their_own_in_both_modes() {
        let lock = LockKey::requested("shop", "a", Mode::Exclusive);
        let shared = LockKey::requested("shop", "a", Mode::Shared);
        assert_eq!(lock, shared);
        assert!(shared.is_shared && !lock.is_shared);
        assert_ne!(lock, LockKey::requested("sho", "pa", Mode::Exclusive));
        let [upper, lower] = lock.halves();
        assert_eq!(LockKey::of_number(upper << 32 | lower), lock);
    }
}
