//! One exclusive lock for readers and writers: right, but readers wait for each other.

use ::lockkeeper::{Mode, Usage};

use super::lock::{Held, Lock, LockRequest};
use super::lockkeeper::Lockkeeper;
use crate::error::Error;

pub(super) struct Exclusive(pub(super) Lockkeeper);

impl Lock for Exclusive {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let mode = Mode::Exclusive;
        self.0.acquire(name, LockRequest { mode, ..request })
    }

    fn usage(&self) -> Option<Usage> {
        self.0.usage()
    }
}
