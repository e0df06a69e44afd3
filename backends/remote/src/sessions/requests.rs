//! What is asked on one connection in one statement, and the replies.

use std::time::Duration;

use lockkeeper_core::Mode;

use crate::failure::Failure;

/// A name that is tried or waited for.
#[derive(Clone, Debug)]
pub struct Attempt<N> {
    /// The name of a lock, or the gate of a semaphore.
    pub name: N,
    /// Beside which holders the session may get it.
    pub mode: Mode,
}

/// Requests about names of one session. No name is in it twice.
#[derive(Debug)]
pub struct Requests<N> {
    /// The names to release.
    pub releases: Vec<N>,
    /// The names to try, without a wait.
    pub attempts: Vec<Attempt<N>>,
    /// The names that the session should hold.
    pub checks: Vec<N>,
    /// The time that the session may be idle from now on, if that is more than before.
    pub(crate) idle: Duration,
}

/// What an attempt was granted.
#[derive(Clone, Debug)]
pub struct Taken<N> {
    /// The name by which the session holds it.
    pub name: N,
    /// The epoch of the grant.
    pub epoch: u64,
    /// The slot of a permit, else 0.
    pub slot: u32,
}

/// What became of an attempt: its grant, or `None` if another process or guard holds the name.
///
/// After [`Failure::Refused`], the server may have granted the name all the same. Another failure says that
/// this connection does not hold it.
pub type Attempted<N> = Result<Option<Taken<N>>, Failure>;

/// The replies to [`Requests`], in their order.
#[derive(Debug)]
pub struct Replies<N> {
    /// Whether the session held the name until now.
    pub released: Vec<bool>,
    /// What became of the attempts.
    pub attempted: Vec<Attempted<N>>,
    /// Whether the session holds the name.
    pub held: Vec<bool>,
}

impl<N> Default for Requests<N> {
    fn default() -> Self {
        Self {
            releases: Vec::new(),
            attempts: Vec::new(),
            checks: Vec::new(),
            idle: Duration::ZERO,
        }
    }
}

impl<N> Requests<N> {
    /// Requests that release names.
    pub fn releases(names: Vec<N>) -> Self {
        Self {
            releases: names,
            ..Self::default()
        }
    }

    /// Requests that try names, without a wait.
    pub fn attempts(attempts: Vec<Attempt<N>>) -> Self {
        Self {
            attempts,
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
        self.releases.len() + self.attempts.len() + self.checks.len()
    }

    /// Returns the names to try.
    pub(crate) fn tried(&self) -> impl Iterator<Item = &N> {
        self.attempts.iter().map(|attempt| &attempt.name)
    }

    /// Returns the names to try, each with what became of it.
    pub(crate) fn attempted<'a>(
        &'a self,
        replies: &'a Replies<N>,
    ) -> impl Iterator<Item = (&'a N, &'a Attempted<N>)> {
        self.tried().zip(&replies.attempted)
    }
}

impl<N> Default for Replies<N> {
    fn default() -> Self {
        Self {
            released: Vec::new(),
            attempted: Vec::new(),
            held: Vec::new(),
        }
    }
}

impl<N: Clone> Replies<N> {
    /// The reply to one attempt.
    pub fn attempt(attempted: Attempted<N>) -> Self {
        Self {
            attempted: vec![attempted],
            ..Self::default()
        }
    }

    /// Returns the names that were granted.
    pub(crate) fn granted(&self) -> Vec<N> {
        let attempted = self.attempted.iter().flatten().flatten();
        attempted.map(|taken| taken.name.clone()).collect()
    }
}
