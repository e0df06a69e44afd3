//! Opens connections to the agents in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Dialer, Endpoint, Http, Server, nothing_granted, senseless};

use super::client::with_query;
use super::{Connection, Learned, Request};
use crate::options::ConsulOptions;

/// An agent that the URL names.
struct Agent {
    dialer: Dialer,
    server: Server,
    /// The host in the head of a request.
    host: String,
}

/// The agents, and how to connect to them.
pub(crate) struct Connector {
    agents: Vec<Agent>,
    token: Option<String>,
    /// The path at which an agent lists the servers of the datacenter.
    servers_path: String,
    /// With TLS: whether an agent has replied.
    tls: Option<Arc<AtomicBool>>,
    limit: Duration,
    pub(crate) learned: Arc<Learned>,
}

impl Connector {
    pub(crate) fn new(options: &ConsulOptions) -> Result<Self, Error> {
        let remote = &options.remote;
        let agent = |endpoint: &Endpoint| {
            Ok(Agent {
                dialer: Dialer::new(&remote.at(endpoint.clone()))?,
                server: Server::new("Consul", endpoint),
                host: endpoint.to_string(),
            })
        };
        let agents = options.agents.iter().map(agent);
        Ok(Self {
            agents: agents.collect::<Result<_, Error>>()?,
            token: options.token.clone(),
            servers_path: with_query(
                "/v1/status/peers",
                &[],
                options.datacenter_query().as_deref(),
            ),
            tls: remote.tls.then(Arc::default),
            limit: remote.connect_timeout,
            learned: Arc::default(),
        })
    }

    /// Returns the number of agents.
    pub(crate) fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Opens a connection to the first agent that takes it, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        let began = Instant::now();
        let mut failed = None;
        for untried in (1..=self.agents.len()).rev() {
            let preferred = self.learned.preferred.load(Ordering::Relaxed);
            let Some(agent) = self.agents.get(preferred % self.agents.len()) else {
                break;
            };
            let left = limit.saturating_sub(began.elapsed());
            let share = left / u32::try_from(untried).unwrap_or(u32::MAX);
            match self.connect_to(agent, preferred, share) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    self.learned.avoid(preferred);
                    if !error.is_retryable() {
                        return Err(error);
                    }
                    failed = failed.or(Some(error));
                }
            }
        }
        Err(failed.unwrap_or_else(senseless))
    }

    fn connect_to(
        &self,
        agent: &Agent,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let server = agent.server.clone();
        if limit.is_zero() {
            return Err(server.no_time_to_connect());
        }
        let stream = agent.dialer.dial(&server, limit)?;
        let mut http = Http::new(stream, server.clone(), &agent.host, self.tls.clone());
        if let Some(token) = &self.token {
            http.add_header("X-Consul-Token", token);
        }
        let mut connection = Connection {
            http,
            open: self.learned.counts.add_connection(),
            server,
            agent: number,
            learned: Arc::clone(&self.learned),
        };
        if self.agents.len() > 1 {
            self.check_cluster(&mut connection, limit.saturating_sub(began.elapsed()))?;
        }
        Ok(connection)
    }

    /// Refuses an agent of another cluster than the agents before it. Otherwise two programs could hold one lock, each in
    /// its own cluster. The servers of a cluster are replaced one by one, so some of them are always known.
    fn check_cluster(&self, connection: &mut Connection, limit: Duration) -> Result<(), Error> {
        let reply = connection.call(Request::get(&self.servers_path), limit, None);
        let servers = serde_json::from_slice::<Vec<String>>(&reply.map_err(nothing_granted)?.body);
        let server = &connection.server;
        let servers = servers.map_err(|_| server.wrong_protocol("?"))?;
        let mut known = self.learned.servers.lock();
        if known.is_empty() || known.iter().any(|it| servers.contains(it)) {
            *known = servers;
            return Ok(());
        }
        let (servers, known) = (servers.join(", "), known.join(", "));
        let text = format!(
            "{server} is of another Consul cluster ({servers}) than the agent before it ({known}); name agents of one cluster in the URL"
        );
        Err(Error::new(ErrorKind::Incompatible, text))
    }
}
