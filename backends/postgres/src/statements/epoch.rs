//! Epochs: the server's clock, read while the lock is held.
//!
//! A sequence would need a right, and goes back when a replica takes over that had not received it.
//! `pg_current_xact_id()` may repeat after a crash. A clock that is set back is noticed by providers that were open
//! before, and by no other one.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_remote::Failure;

use crate::failure::unavailable;

/// The epoch of this moment as an `int8`, in the unit of [`epoch_at`](lockkeeper_core::epoch_at). A `float8`
/// counts times of this century to 2^-22 s, and PostgreSQL's clock to 1 µs. Evaluate it after the lock is granted.
pub(crate) const EPOCH: &str = "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 16777216)::pg_catalog.int8";

/// The largest epoch that this provider was granted.
///
/// What the server granted before a request was sent has a smaller epoch than what it grants to that
/// request. If not, its clock was set back meanwhile.
#[derive(Debug, Default)]
pub(crate) struct LastEpoch(AtomicU64);

impl LastEpoch {
    /// Returns the largest epoch so far: read it before the request is sent.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Records the epoch of a grant.
    pub(crate) fn note(&self, epoch: u64) {
        self.0.fetch_max(epoch, Ordering::SeqCst);
    }

    /// Returns the epoch of a grant, for a request that was sent when the last one was `before`.
    ///
    /// # Errors
    /// [`Failure::Refused`] if the server's clock was set back: release the lock, since its token would not grow.
    pub(crate) fn accept(&self, before: u64, epoch: u64) -> Result<u64, Failure> {
        if epoch > before {
            self.note(epoch);
            return Ok(epoch);
        }
        let seconds = (before - epoch) >> 24;
        Err(Failure::Refused(unavailable(format!(
            "the server's clock was set back by {seconds} s or somewhat more, and nothing is granted before it has caught up, since tokens would not grow; wait, or raise `epoch_offset` by more than that everywhere and restart the programs"
        ))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_of_a_clock_that_was_set_back_is_refused() {
        let last = LastEpoch::default();
        assert_eq!(last.accept(last.get(), 3 << 24).unwrap(), 3 << 24);
        // Two requests were under way at a time, and their replies came in the other order.
        assert_eq!(last.accept(0, 2 << 24).unwrap(), 2 << 24);
        assert_eq!(last.get(), 3 << 24);
        for epoch in [3 << 24, 1 << 24] {
            let Err(Failure::Refused(error)) = last.accept(last.get(), epoch) else {
                panic!("{epoch} was accepted");
            };
            assert!(error.message().contains("set back"), "{error}");
        }
        last.accept(last.get(), (3 << 24) + 1).unwrap();
    }
}
