//! What a thread queues for.

use crate::mode::Mode;
use crate::name::LockName;

/// What threads queue for: the lock of a name, or its permits.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(super) name: &'a LockName,
    pub(super) is_permit: bool,
}

impl<'a> Key<'a> {
    pub(crate) const fn new(name: &'a LockName, mode: Mode) -> Self {
        Self {
            name,
            is_permit: mode.is_permit(),
        }
    }

    /// Returns a number that tells most keys apart.
    pub(crate) fn id(self) -> u64 {
        self.hash().wrapping_add(u64::from(self.is_permit))
    }

    /// Returns the hash of the name, whatever is locked of it.
    pub(super) fn hash(self) -> u64 {
        self.name.hash64()
    }
}
