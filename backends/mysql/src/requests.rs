//! What is asked on one connection in one statement, and the replies.

use lockkeeper_remote::Failure;

use crate::names::EncodedName;

/// Requests about names of one session. No name is in it twice.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The names to release.
    pub(crate) releases: Vec<EncodedName>,
    /// The names to try, without a wait.
    pub(crate) attempts: Vec<EncodedName>,
    /// The names that the session should hold.
    pub(crate) checks: Vec<EncodedName>,
    /// The wait_timeout that the leases need from now on, if that is more than the session's.
    pub(crate) idle_seconds: u64,
}

/// What became of an attempt: the epoch of its grant, or `None` if another process or guard holds the name.
/// After [`Failure::Refused`], the server may have granted the name all the same. Another failure says that
/// this connection does not hold it.
pub(crate) type Attempted = Result<Option<u64>, Failure>;

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

    /// Returns the names that were granted.
    pub(crate) fn granted(&self, replies: &Replies) -> Vec<EncodedName> {
        let granted = self.attempted(replies);
        let granted = granted.filter(|(_, attempted)| matches!(attempted, Ok(Some(_))));
        granted.map(|(name, _)| name.clone()).collect()
    }
}
