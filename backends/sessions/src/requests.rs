//! What is asked on one connection in one statement, and the replies.

use std::time::Duration;

use lockkeeper_remote::Failure;

/// Requests about names of one session. No name is in it twice.
#[derive(Debug)]
pub struct Requests<N> {
    /// The name whose release was sent before: its reply is read first.
    pub sent: Option<N>,
    /// The names to release.
    pub releases: Vec<N>,
    /// The names to try, without a wait.
    pub attempts: Vec<N>,
    /// The names that the session should hold.
    pub checks: Vec<N>,
    /// The time that the session may be idle from now on, if that is more than before.
    pub(crate) idle: Duration,
}

/// What became of an attempt: the epoch of its grant, or `None` if another process or guard holds the name.
///
/// After [`Failure::Refused`], the server may have granted the name all the same. Another failure says that
/// this connection does not hold it.
pub type Attempted = Result<Option<u64>, Failure>;

/// The replies to [`Requests`], in their order.
#[derive(Debug, Default)]
pub struct Replies {
    /// Whether the session held the name whose release was sent before. After [`Failure::Refused`] it may still hold it. If
    /// the name is tried behind such a release, the whole call is [`Failure::Unanswered`].
    pub sent: Option<Result<bool, Failure>>,
    /// Whether the session held the name until now.
    pub released: Vec<bool>,
    /// What became of the attempts.
    pub attempted: Vec<Attempted>,
    /// Whether the session holds the name.
    pub held: Vec<bool>,
}

impl<N> Default for Requests<N> {
    fn default() -> Self {
        Self {
            sent: None,
            releases: Vec::new(),
            attempts: Vec::new(),
            checks: Vec::new(),
            idle: Duration::ZERO,
        }
    }
}

impl<N: PartialEq> Requests<N> {
    /// Requests that release names.
    pub fn releases(names: Vec<N>) -> Self {
        Self {
            releases: names,
            ..Self::default()
        }
    }

    /// Requests that try names, without a wait.
    pub fn attempts(names: Vec<N>) -> Self {
        Self {
            attempts: names,
            ..Self::default()
        }
    }

    /// Requests that ask whether the session holds names.
    pub fn checks(names: Vec<N>) -> Self {
        Self {
            checks: names,
            ..Self::default()
        }
    }

    /// Returns the number of requests, which is that of the replies.
    pub fn count(&self) -> usize {
        let sent = usize::from(self.sent.is_some());
        sent + self.releases.len() + self.attempts.len() + self.checks.len()
    }

    /// Returns the number of names: one may be tried behind its release.
    pub(crate) fn names(&self) -> usize {
        let is_tried = |name| self.attempts.contains(name);
        self.count() - usize::from(self.sent.as_ref().is_some_and(is_tried))
    }

    /// Returns the names that are released, and then those that are tried.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &N> {
        let released = self.sent.iter().chain(&self.releases);
        released.chain(&self.attempts)
    }

    /// Returns the names that were granted by the replies to these requests.
    pub(crate) fn granted<'a>(&'a self, replies: &'a Replies) -> impl Iterator<Item = &'a N> {
        let attempts = self.attempts.iter().zip(&replies.attempted);
        attempts.filter_map(|(name, attempted)| matches!(attempted, Ok(Some(_))).then_some(name))
    }
}

impl Replies {
    /// Makes the reply to one attempt.
    pub fn attempt(attempted: Attempted) -> Self {
        Self {
            attempted: vec![attempted],
            ..Self::default()
        }
    }
}
