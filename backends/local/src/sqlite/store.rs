//! What a provider and its leases share, and how a name goes from one to the next.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Clock, Error, HostInstant, LockName, Released};

use super::db::{Db, Patience, Session};
use super::line::{self, Key, Next};
use super::wake::{Bells, Rung};

pub(super) struct Store {
    pub(super) db: Db,
    pub(super) namespace: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) bells: Bells,
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

    /// Releases a name that somebody may wait for.
    pub(super) fn release_to_next(
        &self,
        name: &LockName,
        epoch: u64,
        patience: &Patience<'_>,
    ) -> Result<Released, Error> {
        let key = self.key(name);
        let (released, next) = self.db.transact(patience, |session| {
            let now = self.clock.now();
            match line::read(session, key)? {
                Some(held) if held.epoch == epoch => {
                    let released = if now < held.expires {
                        Released::Done
                    } else {
                        Released::AlreadyLost
                    };
                    Ok((released, line::pass_on(session, key, now)?))
                }
                _ => Ok((Released::AlreadyLost, Next::Nobody)),
            }
        })?;
        self.ring(key, next, patience);
        Ok(released)
    }

    /// Takes a waiter out of the line; what was kept for it goes to the next.
    pub(super) fn leave(
        &self,
        key: Key<'_>,
        id: i64,
        patience: &Patience<'_>,
    ) -> Result<(), Error> {
        let next = self
            .db
            .transact(patience, |session| self.remove(session, key, id))?;
        self.ring(key, next, patience);
        Ok(())
    }

    fn remove(&self, session: &Session<'_>, key: Key<'_>, id: i64) -> rusqlite::Result<Next> {
        line::leave(session, id)?;
        match line::read(session, key)? {
            Some(held) if held.epoch == 0 && held.reserved == id => {
                line::pass_on(session, key, self.clock.now())
            }
            _ => Ok(Next::Nobody),
        }
    }

    /// Wakes whose turn it is. Where nobody listens any more, it is the next one's.
    ///
    /// A failure on the way delays the next by the grace, and is nobody's error: what the caller
    /// asked for has been done.
    pub(super) fn ring(&self, key: Key<'_>, mut next: Next, patience: &Patience<'_>) {
        while let Next::Kept { id, wake } | Next::Late { id, wake } = &next {
            if self.bells.ring(wake) == Rung::Perhaps {
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

    /// How long to try, for an operation that nobody waits for.
    pub(super) fn briefly(&self) -> Patience<'_> {
        Patience::new(&*self.clock, None::<HostInstant>)
    }
}
