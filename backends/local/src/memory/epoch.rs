//! The epochs of in-process stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use lockkeeper_core::{AcquireRequest, Clock, Error, HostInstant, epoch_at, epochs_in};

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
    /// The epoch of the last reading of the wall clock, and when it was made.
    reading: Option<(u64, HostInstant)>,
    /// The last epoch that was minted here. A proposed epoch must be larger. [`LAST`] does not serve for that:
    /// the members of a quorum may be stores of one process, and get one proposal.
    last: u64,
}

impl EpochMint {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            reading: None,
            last: 0,
        }
    }

    /// Returns the epoch of the grant of a request at `now`.
    ///
    /// # Errors
    /// If the epoch that the request proposes is not larger than the last one.
    pub(super) fn of(
        &mut self,
        request: &AcquireRequest<'_>,
        now: HostInstant,
    ) -> Result<u64, Error> {
        let Some(proposed) = request.proposed_epoch() else {
            return Ok(self.next(now));
        };
        if proposed <= self.last {
            return Err(Error::epoch_too_small(proposed, self.last));
        }
        LAST.fetch_max(proposed, Ordering::Relaxed);
        self.last = proposed;
        Ok(proposed)
    }

    /// Returns the epoch of a grant at `now`: that of the wall clock, or the last one + 1.
    pub(super) fn next(&mut self, now: HostInstant) -> u64 {
        let (wall, read_at) = match self.reading {
            Some(reading) if now.saturating_since(reading.1) < READING_LIFE => reading,
            // `now` may be some time ago, and the epochs would be ahead of the wall clock by that.
            _ => {
                let reading = (epoch_at(SystemTime::now()), self.clock.now());
                *self.reading.insert(reading)
            }
        };
        let epoch = wall.saturating_add(epochs_in(now.saturating_since(read_at)));
        let next = |last: u64| last.max(epoch) + 1;
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| Some(next(it)));
        self.last = next(last.unwrap_or_else(|last| last));
        self.last
    }
}
