//! `memory:`, which lives and dies with its process.

use super::{Store, StoreFault};

pub(super) struct Memory;

impl Store for Memory {
    /// Two keepers share the locks.
    fn urls(&self) -> Vec<String> {
        vec!["memory:soak?".to_owned(); 2]
    }

    fn is_in_process(&self) -> bool {
        true
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        Vec::new()
    }
}
