//! The state of a provider, and how a released name goes to the next waiter.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Clock, Error, HostInstant, LockName, Released};

use super::db::{Db, Patience, Session};
use super::wait_queue::{self, Key, NextHolder};
use super::wake::{Notified, ParkerPool};

pub(super) struct Store {
    pub(super) db: Db,
    pub(super) namespace: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) parkers: ParkerPool,
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

    /// Releases a name that may have waiters.
    pub(super) fn release_to_next(
        &self,
        name: &LockName,
        epoch: u64,
        patience: &Patience<'_>,
    ) -> Result<Released, Error> {
        let key = self.key(name);
        let (released, next) = self.db.transact(patience, |session| {
            let now = self.clock.now();
            match wait_queue::read(session, key)? {
                Some(held) if held.epoch == epoch => {
                    let released = if now < held.expires {
                        Released::Done
                    } else {
                        Released::AlreadyLost
                    };
                    Ok((
                        released,
                        wait_queue::release_to_next_waiter(session, key, now)?,
                    ))
                }
                _ => Ok((Released::AlreadyLost, NextHolder::None)),
            }
        })?;
        self.notify_next(key, next, patience);
        Ok(released)
    }

    /// Removes a waiter from the queue. A name that was reserved for it goes to the next waiter.
    pub(super) fn dequeue(
        &self,
        key: Key<'_>,
        id: i64,
        patience: &Patience<'_>,
    ) -> Result<(), Error> {
        let next = self
            .db
            .transact(patience, |session| self.remove(session, key, id))?;
        self.notify_next(key, next, patience);
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
    pub(super) fn notify_next(&self, key: Key<'_>, mut next: NextHolder, patience: &Patience<'_>) {
        while let NextHolder::Reserved { id, wake } | NextHolder::Unresponsive { id, wake } = &next
        {
            if self.parkers.notify(wake) == Notified::Maybe {
                return;
            }
            let gone = *id;
            let after = self
                .db
                .transact(patience, |session| self.remove(session, key, gone));
            match after {
                Ok(after) => next = after,
                Err(_) => return,
            }
        }
    }

    /// Returns the retry limit for an operation without a deadline.
    pub(super) fn briefly(&self) -> Patience<'_> {
        Patience::new(&*self.clock, None::<HostInstant>)
    }
}
