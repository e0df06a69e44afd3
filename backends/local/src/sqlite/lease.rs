//! A grant: renewing it and giving it back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Error, HostInstant, Lease, LockName, Released, Renewal};

use super::db::{Patience, unknown};
use super::store::Store;
use super::wait_queue::{nanos, signed};

const RENEW: &str = "UPDATE lock SET asked = ?4, expires = ?5
 WHERE namespace = ?1 AND name = ?2 AND epoch = ?3 AND expires > ?4";
/// Frees a name without waiters.
const RELEASE: &str = "DELETE FROM lock
 WHERE namespace = ?1 AND name = ?2 AND epoch = ?3 AND contended = 0 AND expires > ?4";

pub(super) struct SqliteLease {
    pub(super) store: Arc<Store>,
    pub(super) name: LockName,
    pub(super) epoch: u64,
}

impl fmt::Debug for SqliteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLease")
            .field("store", &self.store)
            .field("name", &self.name)
            .field("epoch", &self.epoch)
            .finish()
    }
}

impl Lease for SqliteLease {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn renew(&mut self, ttl: Duration, deadline: HostInstant) -> Result<Renewal, Error> {
        let store = &self.store;
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

    fn release(self: Box<Self>, deadline: HostInstant) -> Result<Released, Error> {
        let store = &self.store;
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
