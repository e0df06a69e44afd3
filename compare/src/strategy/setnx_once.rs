//! `SET key owner NX PX ttl`, tried once, and a script that deletes the key only if the owner is
//! still the same. It is the recipe of Redis' own documentation, and suits "that seat is taken".
//!
//! A thread that does not get the lock gives up at once. The lock expires when its holder dies, and
//! a late release frees no other holder's lock. Nothing renews it, and a holder that lost it is not
//! notified: a late write goes through.

use redis::cmd;

use super::lock::{Held, Lock, LockRequest};
use super::redis::{Client, DELETE_IF_OWNED, milliseconds};
use crate::error::Error;

pub(super) struct SetnxOnce(pub(super) Client);

impl Lock for SetnxOnce {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let owner = self.0.owners.hold();
        let mut set = cmd("SET");
        set.arg(name).arg(&owner).arg("NX");
        set.arg("PX").arg(milliseconds(request.lease.ttl()));
        if !self.0.send::<bool>(&set)? {
            return Ok(None);
        }
        let (client, name) = (self.0.clone(), name.to_owned());
        Ok(Some(Held::new(move || {
            // The script returns whether it deleted the key; the recipe ignores that.
            client.run::<i64>(DELETE_IF_OWNED, name, owner)?;
            Ok(())
        })))
    }
}
