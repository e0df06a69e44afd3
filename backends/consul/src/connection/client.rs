//! Requests on the pool of connections.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, HostInstant};
use lockkeeper_register::Call;
use lockkeeper_remote::{Failure, HttpReply, Pool};

use super::connector::Connector;
use super::{Connection, Request};
use crate::options::ConsulOptions;

/// The connections of a store.
pub(crate) struct Client {
    pub(crate) connector: Arc<Connector>,
    pool: Pool<Connection>,
    /// The connection of the thread that waits for entries of the namespace, since it waits all the time.
    watching: Pool<Connection>,
    pool_size: u32,
    response_timeout: Duration,
    datacenter: Option<String>,
    clock: Arc<dyn Clock>,
}

impl Client {
    pub(crate) fn new(options: &ConsulOptions, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        options.check()?;
        let remote = &options.remote;
        Ok(Self {
            connector: Arc::new(Connector::new(options)?),
            pool: Pool::new(remote.pool_size),
            watching: Pool::new(1),
            pool_size: remote.pool_size,
            response_timeout: remote.response_timeout,
            datacenter: options.datacenter_query(),
            clock,
        })
    }

    /// Returns a path with its query, and the datacenter in it.
    pub(crate) fn path(&self, path: &str, query: &[&str]) -> String {
        with_query(path, query, self.datacenter.as_deref())
    }

    /// Sends a request and reads the reply, within the call and the response timeout. If an agent cannot serve, asks
    /// another one.
    pub(crate) fn request(
        &self,
        request: Request<'_>,
        call: Call<'_>,
    ) -> Result<HttpReply, Failure> {
        let Some(mut slot) = self.pool.checkout(self.left(call.deadline), call.cancel) else {
            let advice = ", or hold and acquire fewer locks at the same time";
            return Err(self.pool.exhausted("", advice));
        };
        let agents = self.connector.learned.agents.all().len();
        let (clock, cancel, connect) = (&*self.clock, call.cancel, self.connect());
        slot.run_on_members(agents, clock, call.deadline, cancel, connect, |it, left| {
            let reply = it.call(request, left.min(self.response_timeout), call.cancel);
            // A cancel has cut the connection itself.
            let is_cancelled = call.cancel.is_some_and(CancelToken::is_cancelled);
            if !is_cancelled && !matches!(reply, Ok(_) | Err(Failure::Refused(_))) {
                self.connector.learned.agents.avoid(it.agent);
            }
            reply
        })
    }

    /// Sends a request to which the agent replies when something has changed. The agent stays in use if its reply is late.
    /// `None` if waiting callers use all connections but one, or the only other thread that is `watching` waits already.
    pub(crate) fn wait(
        &self,
        request: Request<'_>,
        watching: bool,
        call: Call<'_>,
    ) -> Option<Result<HttpReply, Failure>> {
        let pool = match watching {
            true => &self.watching,
            false if self.pool_size == 1 => return None,
            false => &self.pool,
        };
        let (mut slot, _permit) = pool.checkout_to_wait(Duration::ZERO, None)?;
        let (clock, cancel, connect) = (&*self.clock, call.cancel, self.connect());
        Some(slot.run(clock, call.deadline, cancel, connect, |it, left| {
            it.call(request, left, call.cancel)
        }))
    }

    /// Returns what opens a connection.
    fn connect(&self) -> impl Fn(Duration) -> Result<Connection, Error> + Clone + Send + use<> {
        let connector = Arc::clone(&self.connector);
        move |left| connector.connect(left)
    }

    /// Returns the time until a deadline.
    pub(crate) fn left(&self, deadline: HostInstant) -> Duration {
        deadline.saturating_since(self.clock.now())
    }
}

/// Returns a path with its query, and the datacenter in it.
pub(crate) fn with_query(path: &str, query: &[&str], datacenter: Option<&str>) -> String {
    let query: Vec<_> = query.iter().copied().chain(datacenter).collect();
    match query.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", query.join("&")),
    }
}
