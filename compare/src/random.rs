//! Random numbers, from the keys that the system gives to hash maps.

use std::hash::{BuildHasher, RandomState};

/// Returns a number that no other run, program or call has.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
