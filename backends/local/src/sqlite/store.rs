//! The state of a provider, and how a released name goes to the next waiter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, LockName, Released, Renewal};

use super::db::{Db, Session};
use super::listener::LeaseListener;
use super::retry::BusyRetry;
use super::wait_queue::{self, Key, LockRow, NextHolder, SqliteLease};
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

    /// Renews a lease in one statement.
    pub(super) fn renew(
        &self,
        session: &Session<'_>,
        lease: &SqliteLease,
        ttl: Duration,
    ) -> rusqlite::Result<Renewal> {
        let (key, now) = (self.key(&lease.name), self.clock.now());
        let renewed = wait_queue::renew(session, key, lease.epoch, now, ttl)?;
        Ok(if renewed {
            Renewal::Renewed
        } else {
            Renewal::Lost
        })
    }

    /// Releases a lease: in one statement if the name has no waiters.
    pub(super) fn release(
        &self,
        lease: &SqliteLease,
        retry: &BusyRetry<'_>,
    ) -> Result<Released, Error> {
        let released = self
            .db
            .run(retry, |session| self.release_uncontended(session, lease))?;
        let released =
            released || self.end_hold(&lease.name, |held| held.epoch == lease.epoch, retry)?;
        Ok(found(released))
    }

    /// Releases a lease in a transaction of the caller. Returns the waiter to notify after the commit.
    pub(super) fn release_in(
        &self,
        session: &Session<'_>,
        lease: &SqliteLease,
    ) -> rusqlite::Result<(Released, NextHolder)> {
        if self.release_uncontended(session, lease)? {
            return Ok((Released::Done, NextHolder::None));
        }
        let (was_live, next) =
            self.pass_on(session, &lease.name, |held| held.epoch == lease.epoch)?;
        Ok((found(was_live), next))
    }

    fn release_uncontended(
        &self,
        session: &Session<'_>,
        lease: &SqliteLease,
    ) -> rusqlite::Result<bool> {
        let (key, now) = (self.key(&lease.name), self.clock.now());
        wait_queue::release_uncontended(session, key, lease.epoch, now)
    }

    /// Ends the hold if it is `wanted`; the name goes to the next waiter. Returns whether such a hold
    /// was live.
    pub(super) fn end_hold(
        &self,
        name: &LockName,
        wanted: impl Fn(&LockRow) -> bool,
        retry: &BusyRetry<'_>,
    ) -> Result<bool, Error> {
        let (was_live, next) = self
            .db
            .transact(retry, |session| self.pass_on(session, name, &wanted))?;
        self.notify_next(self.key(name), next, retry);
        Ok(was_live)
    }

    fn pass_on(
        &self,
        session: &Session<'_>,
        name: &LockName,
        wanted: impl Fn(&LockRow) -> bool,
    ) -> rusqlite::Result<(bool, NextHolder)> {
        let (key, now) = (self.key(name), self.clock.now());
        match wait_queue::read(session, key)? {
            Some(held) if held.epoch != 0 && wanted(&held) => Ok((
                held.is_live(now),
                wait_queue::release_to_next_waiter(session, key, now)?,
            )),
            _ => Ok((false, NextHolder::None)),
        }
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

fn found(was_live: bool) -> Released {
    if was_live {
        Released::Done
    } else {
        Released::AlreadyLost
    }
}
