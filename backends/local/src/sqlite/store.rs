//! The state of a provider, and how a released name goes to the next waiter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, LockName, Released, Renewal};

use super::db::{Db, Session};
use super::holders::{self, Key, LockRow};
use super::lease::{self, SqliteLease};
use super::listener::LeaseListener;
use super::retry::BusyRetry;
use super::wait_queue::{self, NextHolder};
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
    /// Returns the key of the lock of a name, or of its semaphore.
    pub(super) fn key<'a>(&'a self, name: &'a LockName, permits: bool) -> Key<'a> {
        Key {
            namespace: &self.namespace,
            name: name.as_str(),
            permits,
        }
    }

    pub(super) fn lease_key<'a>(&'a self, lease: &'a SqliteLease) -> Key<'a> {
        self.key(&lease.name, lease.permits)
    }

    /// Returns the retries of an operation without a deadline.
    pub(super) fn brief_retry(&self) -> BusyRetry<'_> {
        BusyRetry::brief(&*self.clock, None)
    }

    /// Starts the listener, by which other processes notify this one of ended leases. Call it before an attempt:
    /// the attempt notices files that were replaced before the listener started.
    pub(super) fn listen(&self) {
        if !self.listener.start(self.db.slot(), &self.parkers) {
            self.db.slot().check_files();
        }
    }

    /// Renews a lease in one statement.
    pub(super) fn renew(
        &self,
        session: &Session<'_>,
        lease: &SqliteLease,
        ttl: Duration,
    ) -> rusqlite::Result<Renewal> {
        let (key, now) = (self.lease_key(lease), self.clock.now());
        let renewed = lease::renew(session, key, lease, now, ttl)?;
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
        let is_own = |held: &LockRow| held.epoch == lease.epoch;
        let released = released || self.end_hold(self.lease_key(lease), is_own, retry)?;
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
        let is_own = |held: &LockRow| held.epoch == lease.epoch;
        let (was_live, next) = self.pass_on(session, self.lease_key(lease), is_own)?;
        Ok((found(was_live), next))
    }

    fn release_uncontended(
        &self,
        session: &Session<'_>,
        lease: &SqliteLease,
    ) -> rusqlite::Result<bool> {
        lease::release_uncontended(session, self.lease_key(lease), lease, self.clock.now())
    }

    /// Ends the hold that `wanted` chooses, and reserves the name for the next waiter. Returns whether that
    /// hold was live.
    pub(super) fn end_hold(
        &self,
        key: Key<'_>,
        wanted: impl Fn(&LockRow) -> bool,
        retry: &BusyRetry<'_>,
    ) -> Result<bool, Error> {
        let (was_live, next) = self
            .db
            .transact(retry, |session| self.pass_on(session, key, &wanted))?;
        self.notify_next(key, next, retry);
        Ok(was_live)
    }

    fn pass_on(
        &self,
        session: &Session<'_>,
        key: Key<'_>,
        wanted: impl Fn(&LockRow) -> bool,
    ) -> rusqlite::Result<(bool, NextHolder)> {
        let now = self.clock.now();
        let mut rows = holders::read(session, key)?;
        let is_wanted = |held: &LockRow| held.epoch != 0 && wanted(held);
        let Some(held) = rows.iter().find(|held| is_wanted(held)) else {
            return Ok((false, NextHolder::None));
        };
        let was_live = held.is_live(now);
        holders::remove(session, key, &mut rows, |row| {
            Ok(is_wanted(row) || !row.is_unexpired(now))
        })?;
        let next = wait_queue::reserve_next(session, key, &mut rows, None, now)?;
        Ok((was_live, next))
    }

    /// Removes a waiter from the queue. The name may then be reserved for the next waiter.
    pub(super) fn dequeue(
        &self,
        key: Key<'_>,
        id: i64,
        retry: &BusyRetry<'_>,
    ) -> Result<(), Error> {
        let next = self
            .db
            .transact(retry, |session| self.remove(session, key, id))?;
        self.notify_next(key, next, retry);
        Ok(())
    }

    fn remove(&self, session: &Session<'_>, key: Key<'_>, id: i64) -> rusqlite::Result<NextHolder> {
        wait_queue::dequeue(session, id)?;
        let now = self.clock.now();
        let mut rows = holders::read(session, key)?;
        holders::remove(session, key, &mut rows, |row| {
            Ok(row.is_reserved_for(id) || !row.is_unexpired(now))
        })?;
        // The waiter behind it may be admitted where this one was not.
        wait_queue::reserve_next(session, key, &mut rows, None, now)
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
