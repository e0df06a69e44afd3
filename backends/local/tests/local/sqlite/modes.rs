//! Shared locks and permits.

use super::*;
use crate::modes::{TestStore, mode_cases};

struct SqliteStore {
    folder: TempStore,
    clock: Arc<dyn Clock>,
}

impl TestStore for SqliteStore {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            folder: TempStore::new(),
            clock,
        }
    }

    fn open(&self) -> Arc<dyn LockProvider> {
        self.folder.provider_with_clock(Arc::clone(&self.clock))
    }

    fn assert_empty(&self) {
        let raw = self.folder.raw();
        assert_eq!((waiters(&raw), locks(&raw)), (0, 0));
    }
}

mode_cases!(SqliteStore);
