//! Releases that are sent and not waited for: the session owes the reply, which the next batch reads.

use std::sync::Arc;

use lockkeeper_core::{ReleaseDispatch, SentRelease};

use crate::connection::SessionConnection;
use crate::lease::SessionLease;
use crate::session::Session;
use crate::store::SessionStore;

/// A release that was sent. If this is dropped before a batch takes it, the reply is lost.
pub(crate) struct Sent<C: SessionConnection> {
    session: Arc<Session<C>>,
    name: C::Name,
    is_taken: bool,
}

impl<C: SessionConnection> Sent<C> {
    /// Takes what the engine gives back. The caller reads the reply.
    pub(crate) fn take(sent: Option<SentRelease>) -> bool {
        let sent = sent.and_then(SentRelease::into_inner::<Self>);
        sent.is_some_and(|mut sent| {
            sent.is_taken = true;
            true
        })
    }
}

impl<C: SessionConnection> Drop for Sent<C> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.session.lose_reply(&self.name);
        }
    }
}

impl<C: SessionConnection> SessionStore<C> {
    /// Sends a release: see [`Backend::send_release`](lockkeeper_core::Backend::send_release).
    pub fn send_release(&self, lease: &SessionLease<C>) -> ReleaseDispatch {
        let SessionLease {
            session,
            name,
            epoch,
        } = lease;
        match session.send_release(name, *epoch, self.clock.now()) {
            false => ReleaseDispatch::NotSent,
            true => ReleaseDispatch::Sent(SentRelease::new(Sent {
                session: Arc::clone(session),
                name: name.clone(),
                is_taken: false,
            })),
        }
    }
}
