//! `SET key owner NX PX ttl`, tried once, and a script that deletes the key only if the owner is
//! still the same: the recipe of Redis' own documentation, for "that seat is taken".
//!
//! Who does not get it gives up at once. It ends by itself when the holder dies, and a late release
//! frees nobody else's lock. Nothing renews it, and who lost it is not told: a late write goes
//! through.

use std::sync::Arc;

use redis::{Script, cmd};

use super::lock::{Held, Lock, Terms};
use super::redis::{DELETE_IF_MINE, Owners, Shared, milliseconds};
use crate::error::Failure;
use crate::store::redis::Door;

/// `SET NX PX` with an owner, and a script to release.
#[derive(Debug)]
pub(crate) struct SetnxOnce {
    shared: Arc<Shared>,
    release: Arc<Script>,
    owners: Owners,
}

impl SetnxOnce {
    /// Connects.
    pub(crate) fn open(door: &Door) -> Result<Self, Failure> {
        Ok(Self {
            shared: Arc::new(Shared::open(door)?),
            release: Arc::new(Script::new(DELETE_IF_MINE)),
            owners: Owners::new(),
        })
    }
}

impl Lock for SetnxOnce {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let owner = self.owners.hold();
        let mut set = cmd("SET");
        set.arg(name).arg(&owner).arg("NX");
        set.arg("PX").arg(milliseconds(terms.lease.ttl()));
        Ok(self.shared.ask::<bool>(&set)?.then(|| {
            Box::new(Hold {
                shared: Arc::clone(&self.shared),
                release: Arc::clone(&self.release),
                name: name.to_owned(),
                owner: Some(owner),
            }) as Box<dyn Held>
        }))
    }
}

struct Hold {
    shared: Arc<Shared>,
    release: Arc<Script>,
    name: String,
    /// `None` once it is released.
    owner: Option<String>,
}

impl Hold {
    fn delete_if_mine(&mut self) -> Result<(), Failure> {
        let Some(owner) = self.owner.take() else {
            return Ok(());
        };
        // It answers whether it was; the recipe does not ask.
        self.shared
            .run::<i64>(self.release.key(&self.name).arg(owner))?;
        Ok(())
    }
}

impl Held for Hold {
    fn release(mut self: Box<Self>) -> Result<(), Failure> {
        self.delete_if_mine()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.delete_if_mine();
    }
}
