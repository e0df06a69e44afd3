//! A grant of a session.

use std::fmt;
use std::sync::Arc;

use crate::connection::SessionConnection;
use crate::session::Session;

/// A grant of a [`SessionStore`](crate::SessionStore).
pub struct SessionLease<C: SessionConnection> {
    pub(crate) session: Arc<Session<C>>,
    pub(crate) name: C::Name,
    pub(crate) epoch: u64,
}

impl<C: SessionConnection> SessionLease<C> {
    /// Returns the identity of the session that holds the name.
    pub fn session(&self) -> C::Id {
        self.session.id
    }

    /// Returns the epoch of the grant.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether the reply to a release is missing.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.session.state().unanswered.contains(&self.name)
    }

    /// Returns the name by which the session holds the lease.
    pub fn name(&self) -> &C::Name {
        &self.name
    }
}

impl<C: SessionConnection> fmt::Debug for SessionLease<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLease")
            .field("session", &self.session)
            .field("name", &self.name)
            .field("epoch", &self.epoch)
            .finish()
    }
}
