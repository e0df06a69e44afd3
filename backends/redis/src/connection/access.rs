//! How to reach one server: its address and its login.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::Error;
use lockkeeper_remote::{Counts, Dialer, Endpoint, RemoteOptions, Server};
use redis::{ServerError, Value, cmd};

use crate::connection::{Connection, Link};
use crate::options::RedisOptions;
use crate::wire::failure::{login_refused, refused};

/// Returns the error for a command that a server refused.
type Meaning = fn(&ServerError) -> Error;

/// The protocol of servers that keep locks, as errors name it.
pub(crate) const PROTOCOL: &str = "Redis";

/// Opens connections to one server, and logs in.
pub(crate) struct Access {
    pub(crate) endpoint: Endpoint,
    pub(crate) server: Server,
    dialer: Dialer,
    /// The commands that log in and choose the database, each with the error for a refusal.
    greeting: Vec<(Vec<u8>, Meaning)>,
    tls: bool,
    counts: Arc<Counts>,
}

impl Access {
    /// Makes the access to the server that keeps locks, at the address in the options.
    pub(crate) fn to_server(options: &RedisOptions, counts: &Arc<Counts>) -> Result<Self, Error> {
        let mut access = Self::new(PROTOCOL, &options.remote, login_refused, counts)?;
        if options.database != 0 {
            let select = cmd("SELECT").arg(options.database).get_packed_command();
            access.greeting.push((select, refused));
        }
        Ok(access)
    }

    /// Makes the access to a server that speaks `protocol`, such as `Redis`.
    pub(crate) fn new(
        protocol: &'static str,
        remote: &RemoteOptions,
        login_refused: Meaning,
        counts: &Arc<Counts>,
    ) -> Result<Self, Error> {
        let mut greeting: Vec<(_, Meaning)> = Vec::new();
        if let Some(password) = &remote.password {
            let mut auth = cmd("AUTH");
            auth.arg(&remote.user).arg(password);
            greeting.push((auth.get_packed_command(), login_refused));
        }
        if remote.tls && greeting.is_empty() {
            // The first request carries the TLS handshake, so it must not be a lock's.
            greeting.push((cmd("PING").get_packed_command(), refused));
        }
        Ok(Self {
            endpoint: remote.endpoint.clone(),
            server: Server::new(protocol, &remote.endpoint),
            dialer: Dialer::new(remote)?,
            greeting,
            tls: remote.tls,
            counts: Arc::clone(counts),
        })
    }

    /// Opens a connection that is logged in, within `limit`.
    pub(crate) fn connect(&self, limit: Duration) -> Result<Connection, Error> {
        let began = Instant::now();
        if limit.is_zero() {
            return Err(self.server.no_time_to_connect());
        }
        let stream = self.dialer.dial(&self.server, limit)?;
        let open = self.counts.add_connection();
        let mut connection =
            Connection::new(Link::own(stream), self.server.clone(), self.tls, open);
        for (command, refused) in &self.greeting {
            let left = limit.saturating_sub(began.elapsed());
            let answer = connection.ask(command, left);
            if let Value::ServerError(error) = answer.map_err(|f| connection.nothing_granted(f))? {
                return Err(refused(&error));
            }
        }
        Ok(connection)
    }
}
