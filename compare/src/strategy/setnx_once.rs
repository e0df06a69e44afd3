//! `SET key owner NX PX ttl`, tried once, and a script that deletes the key only if the owner is
//! still the same: the recipe of Redis' own documentation, for "that seat is taken".
//!
//! A thread that does not get the lock gives up at once. The lock expires when its holder dies, and
//! a late release frees no other holder's lock. Nothing renews it, and a holder that lost it is not
//! notified: a late write goes through.

use std::sync::Arc;

use redis::{Script, cmd};

use super::lock::{Held, Lock, LockRequest, held};
use super::redis::{DELETE_IF_OWNED, Owners, SharedConnection, milliseconds};
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// `SET NX PX` with an owner, and a script to release.
pub(crate) struct SetnxOnce {
    connection: Arc<SharedConnection>,
    release: Arc<Script>,
    owners: Owners,
}

impl SetnxOnce {
    /// Connects.
    pub(crate) fn open(config: &RedisConfig) -> Result<Self, Error> {
        Ok(Self {
            connection: Arc::new(SharedConnection::open(config)?),
            release: Arc::new(Script::new(DELETE_IF_OWNED)),
            owners: Owners::new(),
        })
    }
}

impl Lock for SetnxOnce {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let owner = self.owners.hold();
        let mut set = cmd("SET");
        set.arg(name).arg(&owner).arg("NX");
        set.arg("PX").arg(milliseconds(request.lease.ttl()));
        if !self.connection.send::<bool>(&set)? {
            return Ok(None);
        }
        let (connection, release) = (Arc::clone(&self.connection), Arc::clone(&self.release));
        let name = name.to_owned();
        Ok(Some(held(move || {
            // The script returns whether it deleted the key; the recipe does not ask.
            connection.run::<i64>(release.key(name).arg(owner))?;
            Ok(())
        })))
    }
}
