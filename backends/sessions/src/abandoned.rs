//! The sessions of requests without a reply. A name that the server may have granted to such a session does not
//! count as busy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The largest number of abandoned sessions that are remembered.
const MOST_ABANDONED: usize = 100;
/// The longest time until a server begins with a statement that it received.
const STALL: Duration = Duration::from_secs(60);

/// The sessions of connections that were closed before a reply came. Each is kept while it may hold the
/// name that it requested. The server frees the name when it notices the closed connection.
#[derive(Debug)]
pub(crate) struct AbandonedSessions<I>(Mutex<VecDeque<(I, Instant)>>);

impl<I> Default for AbandonedSessions<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I: Copy> AbandonedSessions<I> {
    pub(crate) fn add(&self, session: I, idle: Duration) {
        let mut abandoned = self.0.lock();
        abandoned.truncate(MOST_ABANDONED);
        abandoned.push_front((session, Instant::now() + idle + STALL));
    }

    /// Returns the sessions that may still hold a name in the server.
    pub(crate) fn current(&self) -> Vec<I> {
        let mut abandoned = self.0.lock();
        let now = Instant::now();
        abandoned.retain(|(_, until)| now < *until);
        abandoned.iter().map(|(session, _)| *session).collect()
    }
}
