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

/// An agent, and the addresses of its servers, as it told them last.
type Agent = Member<Mutex<Vec<String>>>;

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

    /// Opens a connection to an agent, unless it is of another cluster than the others.
    fn connect_to(
        &self,
        agent: &Agent,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let mut connection = self.open(agent, number, limit)?;
        if self.learned.agents.all().len() > 1 {
            let left = || limit.saturating_sub(began.elapsed());
            let servers = self.servers(&mut connection, left())?;
            self.check_cluster(agent, servers, left())?;
        }
        Ok(connection)
    }

    fn open(&self, agent: &Agent, number: usize, limit: Duration) -> Result<Connection, Error> {
        let server = agent.server().clone();
        let stream = agent.dial(limit)?;
        let mut http = Http::new(stream, server.clone(), server.address(), self.tls.clone());
        if let Some(token) = &self.token {
            http.add_header("X-Consul-Token", token);
        }
        Ok(Connection {
            http,
            open: self.learned.counts.add_connection(),
            server,
            agent: number,
            learned: Arc::clone(&self.learned),
        })
    }

    /// Returns the addresses of the servers of an agent's cluster.
    fn servers(&self, connection: &mut Connection, limit: Duration) -> Result<Vec<String>, Error> {
        let reply = connection.call(Request::get(&self.servers_path), limit, None);
        let servers = serde_json::from_slice(&reply.map_err(nothing_granted)?.body);
        servers.map_err(|_| connection.server.wrong_protocol("?"))
    }

    /// Refuses an agent of another cluster than the others. Otherwise two programs could hold one lock, each in its own
    /// cluster.
    ///
    /// Other servers may have replaced the former ones. So an agent that had other servers is asked again. If it is silent,
    /// it is ignored if this agent had its servers as well, or if a third one had servers of both.
    fn check_cluster(
        &self,
        agent: &Agent,
        servers: Vec<String>,
        limit: Duration,
    ) -> Result<(), Error> {
        let are_same = |a: &[String], b: &[String]| a.iter().any(|it| b.contains(it));
        let began = Instant::now();
        let agents = self.learned.agents.all();
        let former = agent.learned.lock().clone();
        let mut told = Vec::new();
        for (number, other) in agents.iter().enumerate() {
            let known = other.learned.lock().clone();
            if std::ptr::eq(other, agent) || known.is_empty() || are_same(&known, &servers) {
                continue;
            }
            let is_known = || {
                let is_of_both = |its: &[String]| are_same(its, &known) && are_same(its, &servers);
                are_same(&former, &known) || agents.iter().any(|it| is_of_both(&it.learned.lock()))
            };
            // Enough is left for the next agent, if this one is silent.
            let share = || limit.saturating_sub(began.elapsed()) / 4;
            let asked = self.open(other, number, share());
            match asked.and_then(|mut asked| self.servers(&mut asked, share())) {
                Ok(now) if are_same(&now, &servers) => told.push((other, now)),
                Err(error) if error.is_retryable() && is_known() => told.push((other, Vec::new())),
                _ => {
                    let (server, other) = (agent.server(), other.server());
                    let (servers, known) = (servers.join(", "), known.join(", "));
                    let text = format!(
                        "{server} is of another Consul cluster ({servers}) than {other} ({known}); name agents of one cluster in the URL"
                    );
                    return Err(Error::new(ErrorKind::Incompatible, text));
                }
            }
        }
        told.push((agent, servers));
        for (agent, servers) in told {
            *agent.learned.lock() = servers;
        }
        Ok(())
    }
}
