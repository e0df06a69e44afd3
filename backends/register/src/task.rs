//! What a provider asks of its store, each about one entry, and the answers.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Grant, Renewal};

use crate::decide::Attempt;
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::store::{SessionId, Version};

/// After so many conflicts, a transaction of an application may have locked the entry, for as long as it likes.
pub(crate) const LOCKED_AFTER: u32 = 6;
/// After so many conflicts, a request waits outside of the queue, and asks again later: the writes of holders and of first
/// waiters go first.
pub(crate) const OUTSIDE_AFTER: u32 = 2;

/// A request about one entry.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) key: &'a Key,
    pub(crate) owner: &'a str,
    pub(crate) verb: Verb<'a>,
}

#[derive(Debug)]
pub(crate) enum Verb<'a> {
    /// Acquires the name. Each round sets the sessions of the lease and of the place, and the least epoch.
    Attempt {
        attempt: Attempt<'a>,
        ttl: Duration,
        /// The ttl of its place in the queue.
        place_ttl: Duration,
    },
    /// Keeps the session of a lease, and looks for the lease.
    Renew {
        lease: &'a RegisterLease,
        /// How long the lease lives from now on.
        ttl: Duration,
    },
    /// Moves the lease to a session of its own.
    Move {
        lease: &'a RegisterLease,
        session: SessionId,
    },
    /// Removes the lease and the place of the owner.
    Remove {
        /// The epoch of the lease. `None` is any.
        epoch: Option<u64>,
        /// The version in which the lease was alone, and the last one that was granted.
        alone_at: Option<Version>,
        /// Whether the entry gets another version in any case, so that writes of the owner that are still under way fail.
        settles: bool,
        /// The version that was to be replaced for that.
        settling: Option<Version>,
    },
}

/// The answer to a task.
#[derive(Debug)]
pub(crate) enum Answered {
    Granted(Grant<RegisterLease>),
    /// Another holder has the name, or an earlier request waits.
    Waits(Position),
    /// There is no lease to resume.
    Gone,
    /// Whether the lease is there, and in which version it was alone.
    Renewed(Renewal, Option<Version>),
    /// Whether there was something to remove.
    Removed(bool),
}

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// The number of earlier waiters.
    pub(crate) ahead: usize,
    /// The version of the entry.
    pub(crate) version: Option<Version>,
    /// Whether the request is in the queue.
    pub(crate) is_queued: bool,
}

/// The sessions of other holders and waiters. A read finds which of them have ended.
pub(crate) type Others = BTreeSet<SessionId>;

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    /// All entries had the versions that were read. Tasks without an answer need another read.
    Written,
    /// An entry had another version.
    Conflict,
    /// The same, and a holder or a waiter in the queue is concerned.
    UrgentConflict,
}

/// The answers to tasks, as far as there are any.
pub(crate) type Answers = Vec<Option<Result<Answered, Error>>>;

impl Verb<'_> {
    /// Removes a lease that was granted, or in doubt what a request has written.
    pub(crate) fn remove(epoch: Option<u64>, settles: bool) -> Self {
        Verb::Remove {
            epoch,
            alone_at: None,
            settles,
            settling: None,
        }
    }
}

pub(crate) fn unexpected() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the store gave another number of answers than it was asked; its backend has a defect",
    )
}
