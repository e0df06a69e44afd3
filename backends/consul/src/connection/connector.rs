//! Opens connections to the agents in turn.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Http, Member, Members, nothing_granted};
use parking_lot::Mutex;

use super::client::with_query;
use super::{Connection, Learned, Request};
use crate::options::ConsulOptions;

/// The agents, and how to connect to them.
pub(crate) struct Connector {
    token: Option<String>,
    /// The path at which an agent lists the servers of the datacenter.
    servers_path: String,
    /// With TLS: whether an agent has replied.
    tls: Option<Arc<AtomicBool>>,
    pub(crate) learned: Arc<Learned>,
}

impl Connector {
    pub(crate) fn new(options: &ConsulOptions) -> Result<Self, Error> {
        let datacenter = options.datacenter_query();
        Ok(Self {
            token: options.token.clone(),
            servers_path: with_query("/v1/status/peers", &[], datacenter.as_deref()),
            tls: options.remote.tls.then(Arc::default),
            learned: Arc::new(Learned {
                agents: Members::new("Consul", &options.remote)?,
                servers: Mutex::default(),
                counts: Arc::default(),
            }),
        })
    }

    /// Opens a connection to the first agent that takes it, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let agents = &self.learned.agents;
        agents.connect(left, |agent, number, limit| {
            self.connect_to(agent, number, limit)
        })
    }

    fn connect_to(
        &self,
        agent: &Member,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let server = agent.server().clone();
        let stream = agent.dial(limit)?;
        let mut http = Http::new(stream, server.clone(), server.address(), self.tls.clone());
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
        if self.learned.agents.all().len() > 1 {
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
