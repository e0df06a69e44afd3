//! What a provider remembers of a grant.

use std::time::Duration;

use crate::key::Key;
use crate::store::{SessionId, Version};

/// A grant of a [`RegisterStore`](crate::RegisterStore).
#[derive(Debug)]
pub struct RegisterLease {
    pub(crate) key: Key,
    pub(crate) owner: String,
    pub(crate) epoch: u64,
    pub(crate) session: SessionId,
    /// The ttl of the session.
    pub(crate) ttl: Duration,
    /// The version of the entry in which this lease was alone, and no request waited. A release needs no read then.
    pub(crate) alone_at: Option<Version>,
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
