//! What a provider remembers of a grant.

use crate::key::Key;
use crate::store::SessionId;

/// A grant of a [`RegisterStore`](crate::RegisterStore).
#[derive(Debug)]
pub struct RegisterLease {
    pub(crate) key: Key,
    pub(crate) owner: String,
    pub(crate) epoch: u64,
    pub(crate) session: SessionId,
}

impl RegisterLease {
    /// Returns the key of the entry that contains the lease.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the session with which the lease ends.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Returns a text that is a part of the entry's value as long as the lease is held, and of no other value.
    pub fn mark(&self) -> String {
        format!(r#"{{"o":"{}","e":{},"#, self.owner, self.epoch)
    }
}
