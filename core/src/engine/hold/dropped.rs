//! A guard that was dropped, between its end in this process and the release of its lease.

use std::time::Duration;

use super::acquired::Acquired;

/// A guard that was dropped, and whose end is not reported yet.
pub(crate) struct DroppedGuard {
    pub(crate) acquired: Acquired,
    pub(crate) ending: Ending,
}

/// How a guard ended.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    /// Whether the name is kept until the lease is released: see [`Finished::Release`](crate::engine::name_state::Finished::Release).
    pub(crate) keeps_name: bool,
    /// Whether the lock was held until then.
    pub(crate) in_time: bool,
    /// How long the guard had the lease, if the guard was reported to the observers.
    pub(crate) held: Option<Duration>,
}
