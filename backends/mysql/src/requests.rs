//! What is asked on one connection in one statement, and the replies.

use lockkeeper_remote::Failure;

use crate::names::EncodedName;
use crate::permits::Permits;

/// Requests about names of one session. No name is in it twice.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The names to release.
    pub(crate) releases: Vec<EncodedName>,
    /// The names to try, without a wait.
    pub(crate) attempts: Vec<EncodedName>,
    /// What is tried is a permit, if it is nothing else: its gate is the only name of the request.
    pub(crate) permits: Option<Permits>,
    /// The names that the session should hold.
    pub(crate) checks: Vec<EncodedName>,
    /// The wait_timeout that the leases need from now on, if that is more than the session's.
    pub(crate) idle_seconds: u64,
}

/// What an attempt was granted.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// The name by which the session holds it.
    pub(crate) name: EncodedName,
    pub(crate) epoch: u64,
    /// The slot of a permit.
    pub(crate) slot: u32,
}

/// What became of an attempt: its grant, or `None` if another process or guard holds the name.
/// After [`Failure::Refused`], the server may have granted the name all the same. Another failure says that
/// this connection does not hold it.
pub(crate) type Attempted = Result<Option<Taken>, Failure>;

/// The replies to [`Requests`], in their order.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// Whether the session held the name until now.
    pub(crate) released: Vec<bool>,
    pub(crate) attempted: Vec<Attempted>,
    /// Whether the session holds the name.
    pub(crate) held: Vec<bool>,
}

impl Requests {
    pub(crate) fn releases(names: Vec<EncodedName>) -> Self {
        Self {
            releases: names,
            ..Self::default()
        }
    }

    pub(crate) fn attempts(names: Vec<EncodedName>) -> Self {
        Self {
            attempts: names,
            ..Self::default()
        }
    }

    pub(crate) fn permit(permits: Permits) -> Self {
        Self {
            attempts: vec![permits.gate.clone()],
            permits: Some(permits),
            ..Self::default()
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.releases.len() + self.attempts.len() + self.checks.len()
    }

    /// Returns the attempts with what became of each.
    pub(crate) fn attempted<'a>(
        &'a self,
        replies: &'a Replies,
    ) -> impl Iterator<Item = (&'a EncodedName, &'a Attempted)> {
        self.attempts.iter().zip(&replies.attempted)
    }
}

impl Replies {
    /// Returns the names that were granted.
    pub(crate) fn granted(&self) -> Vec<EncodedName> {
        let attempted = self.attempted.iter().flatten().flatten();
        attempted.map(|taken| taken.name.clone()).collect()
    }
}
