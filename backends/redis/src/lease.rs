//! A grant.
//!
//! After a lost reply, a release that finds nothing is unknown: the server may have carried out the first one, or
//! have forgotten the lock. With `replicas`, a renewal that is not acknowledged is unknown, since a fail-over would
//! end the lease early.

use std::time::Duration;

/// A grant of a [`RedisProvider`](crate::RedisProvider).
#[derive(Debug)]
pub struct RedisLease {
    pub(crate) key: String,
    /// What the server keeps: see [`owner::lease`](crate::owner::lease).
    pub(crate) text: String,
}

/// Returns a ttl for the server, which counts in signed numbers from 1970. Rounded up, so that no lease is
/// shorter than requested.
pub(crate) fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).min(1 << 52)
}
