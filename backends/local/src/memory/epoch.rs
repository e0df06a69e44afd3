//! The epochs of in-process stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Clock, HostInstant, epoch_at};

/// How long a reading of the wall clock is used. A reading takes a third of the time of an uncontended
/// acquisition.
const READING_LIFE: Duration = Duration::from_secs(1);

/// The last epoch of this process. All stores share it, so that the epochs of a store are larger than
/// those of an earlier store with its name.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Mints epochs that follow the wall clock.
pub(super) struct EpochMint {
    /// The clock of the store.
    clock: Arc<dyn Clock>,
    /// The last reading of the wall clock, and when it was made.
    reading: Option<(SystemTime, HostInstant)>,
}

impl EpochMint {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            reading: None,
        }
    }

    /// Returns the epoch of a grant at `now`: that of the wall clock, or the last one + 1.
    pub(super) fn next(&mut self, now: HostInstant) -> u64 {
        let (wall, read_at) = match self.reading {
            Some(reading) if now.saturating_since(reading.1) < READING_LIFE => reading,
            // `now` may be some time ago, and the epochs would be ahead of the wall clock by that.
            _ => *self.reading.insert((SystemTime::now(), self.clock.now())),
        };
        let wall = wall.checked_add(now.saturating_since(read_at));
        let epoch = epoch_at(wall.unwrap_or(UNIX_EPOCH));
        LAST.fetch_max(epoch, Ordering::Relaxed);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    }
}
