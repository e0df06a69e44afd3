//! This library with all names of a transaction in one call: all or none, in one order, within one wait.
//!
//! The loop over sorted names does the same by hand, with a request to the store for each name. Here names
//! that are free cost one request together, on stores that take several.

use ::lockkeeper::Usage;

use super::lock::{Held, Lock, LockRequest};
use super::lockkeeper::Lockkeeper;
use crate::error::Error;

pub(super) struct LockAll(pub(super) Lockkeeper);

impl Lock for LockAll {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        self.0.acquire(name, request)
    }

    fn acquire_all(
        &self,
        names: &[String],
        request: LockRequest,
    ) -> Result<Option<Vec<Held>>, Error> {
        let held = self.0.acquire_together(names, request)?;
        Ok(held.map(|held| vec![held]))
    }

    fn usage(&self) -> Option<Usage> {
        self.0.usage()
    }
}
