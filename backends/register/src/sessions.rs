//! The sessions of a provider: one for each ttl in use, with which all its leases and waiters end.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::HostInstant;
use parking_lot::Mutex;

use crate::store::{SessionId, View};

/// A grant needs a session that was kept not longer ago than this, or than a part of its ttl. It is less than the margin by
/// default: a grant that is older is renewed before it is relied on.
const FRESH: Duration = Duration::from_millis(500);

/// A session that has not ended, as far as this process knows.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl: Duration,
    /// A time before the session was last kept: it lives for its ttl from then on.
    pub(crate) kept_at: HostInstant,
}

impl Session {
    /// Returns whether a lease may be granted in the session.
    pub(crate) fn is_fresh(&self, now: HostInstant) -> bool {
        now < self.kept_at + FRESH.min(self.ttl / 20)
    }

    /// Returns whether a waiter need not keep the session in this look.
    pub(crate) fn is_kept(&self, now: HostInstant) -> bool {
        now < self.kept_at + self.ttl / 5
    }
}

/// The current sessions, by their ttl.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<BTreeMap<Duration, Session>>);

impl Sessions {
    /// Returns the session for leases with `ttl`.
    pub(crate) fn current(&self, ttl: Duration) -> Option<Session> {
        self.0.lock().get(&ttl).cloned()
    }

    /// Adds a session. Returns false if another thread has added one meanwhile: all leases of one ttl share one session.
    pub(crate) fn add(&self, session: Session) -> bool {
        let mut all = self.0.lock();
        // A session that was not kept for so long is not in use.
        all.retain(|ttl, it| session.kept_at < it.kept_at + 4 * *ttl);
        let is_new = !all.contains_key(&session.ttl);
        if is_new {
            all.insert(session.ttl, session);
        }
        is_new
    }

    /// Records that sessions were kept at `at`, or have ended. Returns those that have.
    pub(crate) fn note(
        &self,
        kept: &[(&str, Duration)],
        view: &View,
        at: HostInstant,
    ) -> Vec<Session> {
        let mut all = self.0.lock();
        let mut ended = Vec::new();
        all.retain(|_, session| {
            let has_ended = view.ended.contains(&session.id);
            ended.extend(has_ended.then(|| session.clone()));
            !has_ended
        });
        for session in all.values_mut() {
            if kept.iter().any(|(id, _)| *id == session.id) {
                session.kept_at = session.kept_at.max(at);
            }
        }
        ended
    }

    /// Removes and returns all sessions.
    pub(crate) fn take(&self) -> Vec<SessionId> {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_values().map(|session| session.id).collect()
    }
}
