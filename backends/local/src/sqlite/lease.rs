//! A grant: renewing it and giving it back.

use std::time::Duration;

use lockkeeper_core::{Error, HostInstant, LockName, Released, Renewal};

use super::db::{Patience, unknown};
use super::store::Store;
use super::wait_queue::{nanos, signed};

const RENEW: &str = "UPDATE lock SET asked = ?4, expires = ?5
 WHERE namespace = ?1 AND name = ?2 AND epoch = ?3 AND expires > ?4";
/// Frees a name without waiters.
const RELEASE: &str = "DELETE FROM lock
 WHERE namespace = ?1 AND name = ?2 AND epoch = ?3 AND contended = 0 AND expires > ?4";

/// A grant of a [`SqliteProvider`](super::SqliteProvider).
#[derive(Debug)]
pub struct SqliteLease {
    pub(super) name: LockName,
    pub(super) epoch: u64,
}

impl SqliteLease {
    pub(super) fn renew(
        &self,
        store: &Store,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let mut patience = Patience::new(&*store.clock, None);
        patience.until = deadline;
        let changed = store.db.run(&patience, |session| {
            let now = store.clock.now();
            session.change(
                RENEW,
                (
                    store.namespace.as_str(),
                    self.name.as_str(),
                    signed(self.epoch),
                    nanos(now),
                    nanos(now + ttl),
                ),
            )
        });
        match changed.map_err(unknown)? {
            0 => Ok(Renewal::Lost),
            _ => Ok(Renewal::Renewed),
        }
    }

    pub(super) fn release(&self, store: &Store, deadline: HostInstant) -> Result<Released, Error> {
        let patience = Patience::new(&*store.clock, Some(deadline));
        let changed = store.db.run(&patience, |session| {
            session.change(
                RELEASE,
                (
                    store.namespace.as_str(),
                    self.name.as_str(),
                    signed(self.epoch),
                    nanos(store.clock.now()),
                ),
            )
        });
        match changed.map_err(unknown)? {
            0 => store
                .release_to_next(&self.name, self.epoch, &patience)
                .map_err(unknown),
            _ => Ok(Released::Done),
        }
    }
}
