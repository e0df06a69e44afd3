//! What a store promises beyond the contract that all stores keep.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::mode::MAX_PERMITS;

/// A promise that not every store can keep. If it is required, opening a store without it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Excludes the other processes of this host.
    CrossProcess,
    /// Excludes the processes of other hosts.
    CrossHost,
    /// When a holder's process has died, grants its lock at once, and not after its ttl.
    DeadOwnerTakeOver,
    /// Provides SQL by which the application's own transaction can prove a hold; see
    /// [`LockGuard::commit_proof`](crate::LockGuard::commit_proof).
    CommitProof,
    /// Grants [`Mode::Shared`](crate::Mode::Shared).
    Shared,
    /// Grants [`Mode::Permit`](crate::Mode::Permit), up to [`Capabilities::max_permits`].
    Permits,
    /// Grants a name with an epoch that the request proposes, so the store can be a member of a quorum; see
    /// [`AcquireRequest::proposed_epoch`](crate::AcquireRequest::proposed_epoch).
    ProposedEpoch,
    /// Keeps a lease that no process has, so that a [`Ticket`](crate::Ticket) passes a lock on; see
    /// [`LockGuard::detach`](crate::LockGuard::detach).
    Tickets,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Capability; 8] = [
        Capability::CrossProcess,
        Capability::CrossHost,
        Capability::DeadOwnerTakeOver,
        Capability::CommitProof,
        Capability::Shared,
        Capability::Permits,
        Capability::ProposedEpoch,
        Capability::Tickets,
    ];

    /// Returns the name by which a config requires it, such as `cross_host`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Capability::CrossProcess => "cross_process",
            Capability::CrossHost => "cross_host",
            Capability::DeadOwnerTakeOver => "dead_owner_take_over",
            Capability::CommitProof => "commit_proof",
            Capability::Shared => "shared",
            Capability::Permits => "permits",
            Capability::ProposedEpoch => "proposed_epoch",
            Capability::Tickets => "tickets",
        }
    }

    /// Returns what to do if the store does not have the capability.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Capability::Shared => {
                "use a store that has it: memory, SQLite, Redis, PostgreSQL, etcd, Consul, ZooKeeper, or a table of MySQL (locks=table)"
            }
            Capability::Permits => {
                "use a store that has it: memory, SQLite, Redis, etcd, Consul, ZooKeeper, or a table of PostgreSQL or MySQL (locks=table)"
            }
            Capability::Tickets => {
                "use a store that has it: SQLite, Redis, etcd, Consul, ZooKeeper, or a table of PostgreSQL or MySQL (locks=table)"
            }
            _ => "use another store",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Capability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|capability| capability.as_str() == text)
            .ok_or_else(|| {
                let known = Self::ALL.map(Capability::as_str).join(", ");
                Error::new(
                    ErrorKind::InvalidValue,
                    format!("`require` does not know {text:?}; it takes {known}"),
                )
            })
    }
}

/// The [capabilities](Capability) and the limits that a provider declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    has: u32,
    min_ttl: Duration,
    ttl_step: Duration,
    /// 0 is no least margin.
    margin_divisor: u32,
    batch: usize,
    renewals: usize,
    parts: usize,
    attempt_limit: Duration,
    max_permits: u32,
}

impl Capabilities {
    /// The smallest ttl of any store. Scheduling delays would use up a shorter lease.
    pub const MIN_TTL: Duration = Duration::from_millis(100);

    /// Makes capabilities with no promise beyond the contract, the smallest ttl, and one operation for each
    /// call.
    pub const fn new() -> Self {
        Self {
            has: 0,
            min_ttl: Self::MIN_TTL,
            ttl_step: Duration::from_nanos(1),
            margin_divisor: 0,
            batch: 1,
            renewals: 1,
            parts: 1,
            attempt_limit: Duration::from_secs(2),
            max_permits: MAX_PERMITS,
        }
    }

    /// Adds a capability.
    #[must_use]
    pub const fn with(mut self, capability: Capability) -> Self {
        self.has |= 1 << capability as u32;
        self
    }

    /// Sets the smallest ttl that this store can keep, at least [`Capabilities::MIN_TTL`].
    #[must_use]
    pub fn with_min_ttl(mut self, min_ttl: Duration) -> Self {
        self.min_ttl = min_ttl.max(Self::MIN_TTL);
        self
    }

    /// Sets the unit of every ttl of this store. The default is 1 ns, so that every ttl is allowed.
    #[must_use]
    pub const fn with_ttl_step(mut self, step: Duration) -> Self {
        self.ttl_step = step;
        self
    }

    /// Sets the least margin: the ttl divided by `divisor`. It is for a store that only promises to keep a lease for a
    /// part of its ttl, and frees the name by the end of the ttl. A guard is lost, and renewed, that much earlier. The
    /// margin is never more than half of the ttl, so a divisor below 2 is one of 2.
    #[must_use]
    pub const fn with_least_margin(mut self, divisor: u32) -> Self {
        self.margin_divisor = divisor;
        self
    }

    /// Sets how many operations one call of [`Backend::batch`](crate::Backend::batch) takes, at least
    /// one. With one, an acquisition calls [`Backend::acquire`](crate::Backend::acquire) at once, any number of threads
    /// ask at the same time, and no request goes behind another one.
    #[must_use]
    pub const fn with_batch(mut self, operations: usize) -> Self {
        self.batch = if operations == 0 { 1 } else { operations };
        self.renewals = self.batch;
        self
    }

    /// Sets how many renewals one call of [`Backend::batch`](crate::Backend::batch) takes, at least one. It is for
    /// a store that takes only renewals together. The default is the number of other operations.
    #[must_use]
    pub const fn with_renewals(mut self, renewals: usize) -> Self {
        self.renewals = if renewals == 0 { 1 } else { renewals };
        self
    }

    /// Sets the number of parts of the store, at least one, which is the default. Requests to different parts are
    /// not sent together: see [`Backend::part`](crate::Backend::part).
    #[must_use]
    pub const fn with_parts(mut self, parts: usize) -> Self {
        self.parts = if parts == 0 { 1 } else { parts };
        self
    }

    /// Sets how long a single attempt takes at most, with its repetition after a lost reply. The default is 2
    /// s.
    #[must_use]
    pub const fn with_attempt_limit(mut self, limit: Duration) -> Self {
        self.attempt_limit = limit;
        self
    }

    /// Sets the largest limit of a semaphore on this store. Default: [`MAX_PERMITS`].
    #[must_use]
    pub const fn with_max_permits(mut self, limit: u32) -> Self {
        self.max_permits = limit;
        self
    }

    /// Returns whether the store has `capability`.
    pub const fn has(&self, capability: Capability) -> bool {
        self.has & (1 << capability as u32) != 0
    }

    /// Returns the smallest ttl that this store can keep.
    pub const fn min_ttl(&self) -> Duration {
        self.min_ttl
    }

    /// Returns the unit of which every ttl of this store is a multiple.
    pub const fn ttl_step(&self) -> Duration {
        self.ttl_step
    }

    /// Returns the least margin of a guard with this ttl: how much earlier than the ttl the store may free the name.
    pub fn least_margin(&self, ttl: Duration) -> Duration {
        ttl.checked_div(self.margin_divisor).unwrap_or_default()
    }

    /// Returns how long a single attempt takes at most, with its repetition after a lost reply.
    pub const fn attempt_limit(&self) -> Duration {
        self.attempt_limit
    }

    /// Returns how many operations one call of [`Backend::batch`](crate::Backend::batch) takes.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Returns how many renewals one call of [`Backend::batch`](crate::Backend::batch) takes.
    pub const fn renewals(&self) -> usize {
        self.renewals
    }

    /// Returns the number of parts of the store.
    pub const fn parts(&self) -> usize {
        self.parts
    }

    /// Returns the largest limit of a semaphore on this store.
    pub const fn max_permits(&self) -> u32 {
        self.max_permits
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_distinct_and_parsed_by_name() {
        for capability in Capability::ALL {
            let only = Capabilities::new().with(capability);
            for other in Capability::ALL {
                assert_eq!(only.has(other), other == capability);
            }
            assert_eq!(
                capability.as_str().parse::<Capability>().unwrap(),
                capability
            );
        }
        let error = "crosshost".parse::<Capability>().unwrap_err();
        assert!(error.to_string().contains("cross_host"));
    }
}
