//! The state of a provider, and how a released name goes to the next waiter.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Clock, Error, LockName};

use super::db::{Db, Session};
use super::listener::LeaseListener;
use super::retry::BusyRetry;
use super::wait_queue::{self, Key, LockRow, NextHolder};
use super::wake::{Notified, ParkerPool};

pub(super) struct Store {
    pub(super) db: Db,
    pub(super) namespace: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) parkers: ParkerPool,
    pub(super) listener: LeaseListener,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.db.path())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Store {
    pub(super) fn key<'a>(&'a self, name: &'a LockName) -> Key<'a> {
        Key {
            namespace: &self.namespace,
            name: name.as_str(),
        }
    }

    /// Returns the retries of an operation without a deadline.
    pub(super) fn brief_retry(&self) -> BusyRetry<'_> {
        BusyRetry::brief(&*self.clock, None)
    }

    /// Has this process be told if another one ends a lease of it.
    pub(super) fn listen(&self) {
        self.listener.start(self.db.slot(), &self.parkers);
    }

    /// Ends the hold if it is `wanted`; the name goes to the next waiter. Returns whether such a hold
    /// was live.
    pub(super) fn end_hold(
        &self,
        name: &LockName,
        wanted: impl Fn(&LockRow) -> bool,
        retry: &BusyRetry<'_>,
    ) -> Result<bool, Error> {
        let key = self.key(name);
        let (was_live, next) = self.db.transact(retry, |session| {
            let now = self.clock.now();
            match wait_queue::read(session, key)? {
                Some(held) if held.epoch != 0 && wanted(&held) => Ok((
                    held.is_live(now),
                    wait_queue::release_to_next_waiter(session, key, now)?,
                )),
                _ => Ok((false, NextHolder::None)),
            }
        })?;
        self.notify_next(key, next, retry);
        Ok(was_live)
    }

    /// Removes a waiter from the queue. A name that was reserved for it goes to the next waiter.
    pub(super) fn dequeue(&self, key: Key<'_>, id: i64) -> Result<(), Error> {
        let retry = self.brief_retry();
        let next = self
            .db
            .transact(&retry, |session| self.remove(session, key, id))?;
        self.notify_next(key, next, &retry);
        Ok(())
    }

    fn remove(&self, session: &Session<'_>, key: Key<'_>, id: i64) -> rusqlite::Result<NextHolder> {
        wait_queue::dequeue(session, id)?;
        match wait_queue::read(session, key)? {
            Some(held) if held.epoch == 0 && held.reserved == id => {
                wait_queue::release_to_next_waiter(session, key, self.clock.now())
            }
            _ => Ok(NextHolder::None),
        }
    }

    /// Notifies the next holder. If its process no longer listens, the name goes to the next waiter.
    ///
    /// An error here is not reported, since the operation of the caller has succeeded. It delays the
    /// next waiter by [`wait_queue::GRACE`].
    pub(super) fn notify_next(&self, key: Key<'_>, mut next: NextHolder, retry: &BusyRetry<'_>) {
        while let NextHolder::Reserved { id, wake } | NextHolder::Unresponsive { id, wake } = &next
        {
            if self.parkers.notify(wake) == Notified::Maybe {
                return;
            }
            let gone = *id;
            let removed = self
                .db
                .transact(retry, |session| self.remove(session, key, gone));
            let Ok(after) = removed else { return };
            next = after;
        }
    }
}
