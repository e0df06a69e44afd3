//! An exclusive lock and a counter of readers: the first reader acquires the lock, the last one releases it,
//! and readers in between only count.
//!
//! A reader that comes while others read gets in at once, also past a writer that waits. As long as readers
//! keep coming the counter never falls to zero, and the writer starves.

use std::sync::Arc;

use ::lockkeeper::{LockGuard, Mode, Usage};
use parking_lot::Mutex;

use super::lock::{Held, Lock, LockRequest};
use super::lockkeeper::Lockkeeper;
use crate::error::Error;

/// Counts the readers of one name.
pub(super) struct ReaderCounter {
    lock: Lockkeeper,
    readers: Arc<Mutex<Readers>>,
}

#[derive(Default)]
struct Readers {
    count: u32,
    /// What the first reader acquired.
    held: Option<LockGuard>,
}

impl ReaderCounter {
    pub(super) fn new(lock: Lockkeeper) -> Self {
        let readers = Arc::default();
        Self { lock, readers }
    }
}

impl Lock for ReaderCounter {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let exclusive = LockRequest {
            mode: Mode::Exclusive,
            ..request
        };
        if request.mode != Mode::Shared {
            return self.lock.acquire(name, exclusive);
        }
        // While the first reader waits for the lock, the others wait here.
        let mut readers = self.readers.lock();
        if readers.count == 0 {
            readers.held = self.lock.acquire_guard(name, exclusive)?;
            if readers.held.is_none() {
                return Ok(None);
            }
        }
        readers.count += 1;
        let readers = Arc::clone(&self.readers);
        Ok(Some(Held::new(move || {
            let mut readers = readers.lock();
            readers.count -= 1;
            if readers.count == 0
                && let Some(held) = readers.held.take()
            {
                held.release()?;
            }
            Ok(())
        })))
    }

    fn usage(&self) -> Option<Usage> {
        self.lock.usage()
    }
}
