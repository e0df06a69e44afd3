//! What a store forgot, and what the contract allows then.

use std::collections::HashMap;

use crate::history::Grant;

/// A time in which the store forgot leases: they may be granted again although their holders cannot know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forgot {
    /// Whose leases it forgot: those of the keepers on this URL of the worker's plan; `None`: all.
    pub(crate) keeper: Option<u32>,
    /// Before the store forgot.
    pub(crate) from: u64,
    /// After it: what is granted from then on, it remembers.
    pub(crate) to: u64,
}

/// Decides whether a lease may live on beside a later one because the store had forgotten it.
pub(crate) struct Excuses<'a> {
    ttl: u64,
    forgot: &'a [Forgot],
    /// When the lease of each epoch was requested: hand-overs keep a lease that the store has forgotten.
    requested: HashMap<u64, u64>,
}

impl<'a> Excuses<'a> {
    pub(crate) fn new(ttl: u64, grants: &[&Grant], forgot: &'a [Forgot]) -> Self {
        let mut requested = HashMap::new();
        for grant in grants {
            let first = requested.entry(grant.epoch()).or_insert(grant.asked);
            *first = grant.asked.min(*first);
        }
        Self {
            ttl,
            forgot,
            requested,
        }
    }

    /// Returns whether the store forgot the lease of `earlier` before it granted `later`. `earlier` was held
    /// until `until`. If that is more than a ttl after the store forgot the lease, the result is false.
    pub(crate) fn has(&self, earlier: &Grant, later: &Grant, until: u64) -> bool {
        let requested = self.requested.get(&earlier.epoch());
        let requested = requested.copied().unwrap_or(earlier.asked);
        self.forgot.iter().any(|forgot| {
            forgot.keeper.is_none_or(|keeper| keeper == earlier.keeper)
                && requested <= forgot.to
                && later.granted >= forgot.from
                && until <= forgot.to.saturating_add(self.ttl)
        })
    }
}
