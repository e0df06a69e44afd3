//! Servers behind proxies, whose addresses are the only ones that the others know.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;

use super::{RedisKind, RedisOptions, RedisServer};
use crate::daemon::START;
use crate::proxy::Proxy;
use crate::until::found_within;

/// Servers that work together, by number, each with the proxy in front of it.
pub struct ProxiedServers(Vec<(RedisServer, Proxy)>);

impl ProxiedServers {
    /// Starts servers. `options` makes the options of a server from the port of its proxy. The server has to know
    /// that port at every start.
    pub(super) fn start(
        kind: RedisKind,
        count: usize,
        options: impl Fn(String) -> RedisOptions,
    ) -> io::Result<Self> {
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            let proxy = Proxy::new((Ipv4Addr::LOCALHOST, 0).into())?;
            let port = proxy.addr().port().to_string();
            let server = RedisServer::start(kind, &options(port))?;
            proxy.lead_to(server.addr());
            servers.push((server, proxy));
        }
        Ok(Self(servers))
    }

    /// Returns the number of servers.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns all servers, each with its proxy.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&RedisServer, &Proxy)> {
        self.0.iter().map(|(server, proxy)| (server, proxy))
    }

    /// Returns all servers.
    pub fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        self.0.iter().map(|(server, _)| server)
    }

    /// Returns all proxies.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.0.iter().map(|(_, proxy)| proxy)
    }

    /// Returns a server by its number.
    ///
    /// # Panics
    /// There are fewer servers.
    #[must_use]
    pub fn server(&self, at: usize) -> &RedisServer {
        &self.pair(at).0
    }

    /// Returns the proxy in front of a server by the server's number.
    ///
    /// # Panics
    /// There are fewer servers.
    #[must_use]
    pub fn proxy(&self, at: usize) -> &Proxy {
        &self.pair(at).1
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "a test passes a number of a set that it started"
    )]
    fn pair(&self, at: usize) -> &(RedisServer, Proxy) {
        &self.0[at]
    }

    /// Returns the number of the server that a reply names by the port of its proxy.
    pub(super) fn named(&self, port: i64) -> Option<usize> {
        self.proxies()
            .position(|proxy| i64::from(proxy.addr().port()) == port)
    }
}

impl fmt::Debug for ProxiedServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

/// Waits for a condition for 90 s at most. The error has the logs of `servers`.
pub(super) fn wait<'a>(
    what: &str,
    servers: impl Iterator<Item = &'a RedisServer>,
    mut condition: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let holds = found_within(START, || Ok(condition()?.then_some(())))?;
    holds.ok_or_else(|| {
        let logs: Vec<_> = servers.map(|it| it.log()).collect();
        let text = format!("never: {what}. The logs:\n{}", logs.join("\n"));
        io::Error::new(io::ErrorKind::TimedOut, text)
    })
}
