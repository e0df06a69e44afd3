//! The connection on which a provider reads and writes entries, and waits for their changes. When it ends, the next
//! request opens another one, with a session of its own: no lease depends on it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, HostInstant};
use lockkeeper_register::Call;
use lockkeeper_remote::{Failure, Pool, no_time, senseless};

use super::Notices;
use super::channel::Channel;
use super::connector::Connector;
use crate::wire::{Reply, Request};

/// The time-out of a session that keeps no lease.
pub(crate) const SESSION: Duration = Duration::from_secs(30);

/// The connection of a provider; dropping it ends the session.
pub(crate) struct Link {
    pub(crate) connector: Arc<Connector>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) clock: Arc<dyn Clock>,
    /// How long the session of the connection lives after the process has gone, if the server allows that.
    session: Duration,
    /// One channel. After a cancel, a thread goes on to open it.
    current: Pool<Current>,
}

/// The channel of new requests. Dropping it ends its session.
struct Current(Arc<Channel>);

impl lockkeeper_remote::Connection for Current {
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.0.is_fit()
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Link {
    pub(crate) fn new(
        connector: Arc<Connector>,
        notices: Arc<Notices>,
        clock: Arc<dyn Clock>,
        session: Duration,
    ) -> Self {
        Self {
            connector,
            notices,
            clock,
            session,
            current: Pool::new(1),
        }
    }

    /// Returns the time until a deadline.
    pub(crate) fn left(&self, deadline: HostInstant) -> Duration {
        deadline.saturating_since(self.clock.now())
    }

    /// Makes requests that belong together and returns their replies. Requests that change nothing are repeated with
    /// another member if one does not answer, or knows less than was seen before.
    pub(crate) fn call(&self, requests: &[Request], call: Call<'_>) -> Result<Vec<Reply>, Failure> {
        // The channel waits for replies.
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let repeats = requests.iter().all(Request::only_reads);
        let seen = self.connector.learned.zxid();
        let mut untried = self.connector.members().len() + 1;
        let mut unanswered = None;
        loop {
            let channel = match (self.channel(call), unanswered) {
                (Ok(channel), _) => channel,
                (Err(_), Some(unanswered)) => return Err(unanswered),
                (Err(failure), None) => return Err(failure),
            };
            let limit = self
                .left(call.deadline)
                .min(self.connector.response_timeout);
            let mut answer = channel.ask(requests, limit, call.cancel);
            if let Ok(replies) = &answer
                && repeats
                && replies.last().is_some_and(|last| last.zxid < seen)
            {
                channel.close();
                answer = Err(Failure::Closed(lockkeeper_remote::unavailable(
                    "the member is cut off from the others; try again",
                )));
            }
            untried -= 1;
            let is_repeated = match &answer {
                Err(Failure::Closed(_)) => true,
                Err(Failure::Unanswered(_)) => repeats,
                _ => false,
            };
            let is_cancelled = call.cancel.is_some_and(CancelToken::is_cancelled);
            if !is_repeated || is_cancelled || untried == 0 || self.left(call.deadline).is_zero() {
                return answer;
            }
            unanswered = answer.err();
        }
    }

    fn channel(&self, call: Call<'_>) -> Result<Arc<Channel>, Failure> {
        let Call { deadline, cancel } = call;
        let slot = self.current.checkout(self.left(deadline), cancel);
        let mut slot = slot.ok_or_else(no_time)?;
        let (connector, notices) = (Arc::clone(&self.connector), Arc::clone(&self.notices));
        let session = self.session;
        let open = move |left| open(&connector, &notices, session, left);
        slot.run(&*self.clock, deadline, cancel, open, |current, _| {
            Ok(Arc::clone(&current.0))
        })
    }
}

fn open(
    connector: &Connector,
    notices: &Arc<Notices>,
    session: Duration,
    left: Duration,
) -> Result<Current, Error> {
    let opened = connector.connect(None, session, left)?;
    let (connection, session) = opened.ok_or_else(senseless)?;
    let limit = connector.response_timeout;
    Channel::start(connection, session.timeout, limit, notices).map(Current)
}
