//! Opens connections to the members in turn, and logs in.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Dialer, Endpoint, Http, Server, senseless};
use serde_json::{Value, json};

use super::{Connection, Learned};
use crate::options::EtcdOptions;

/// The longest time to connect to a member for a single question. Its reply may take longer, since a login takes
/// some 50 ms of the server's CPU.
const ASIDE_CONNECT_TIME: Duration = Duration::from_millis(500);
/// A record of TLS that is no handshake.
const NO_HANDSHAKE: [u8; 10] = [22, 3, 1, 0, 5, 1, 0, 0, 1, 0];
/// The first byte of TLS's alerts.
const ALERT: u8 = 21;

/// A member of the cluster.
pub(super) struct Member {
    dialer: Dialer,
    server: Server,
    /// The id of the member's cluster, as the member told it last; 0 if unknown.
    pub(super) cluster: AtomicU64,
    /// The host in the head of a request.
    pub(super) host: String,
}

impl Member {
    /// Returns whether the member replies to an invalid handshake as TLS does.
    fn speaks_tls(&self) -> bool {
        let Ok(mut stream) = self.dialer.dial(&self.server, ASIDE_CONNECT_TIME) else {
            return false;
        };
        stream.begin(ASIDE_CONNECT_TIME);
        let mut first = [0];
        let sent = stream.write_all(&NO_HANDSHAKE);
        let read = sent.and_then(|()| stream.read_exact(&mut first));
        read.is_ok() && first == [ALERT]
    }
}

/// The members of a cluster, and how to connect to them.
pub(crate) struct Connector {
    pub(super) members: Vec<Member>,
    login: Option<Value>,
    /// With TLS: whether a member has replied.
    tls: Option<Arc<AtomicBool>>,
    pub(super) limit: Duration,
    pub(crate) learned: Arc<Learned>,
}

impl Connector {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, Error> {
        let remote = &options.remote;
        let member = |endpoint: &Endpoint| {
            Ok(Member {
                dialer: Dialer::new(&remote.at(endpoint.clone()))?,
                server: Server::new("etcd", endpoint),
                cluster: AtomicU64::default(),
                host: endpoint.to_string(),
            })
        };
        let members = options.members.iter().map(member);
        let login = remote.user.as_ref().zip(remote.password.as_ref());
        Ok(Self {
            members: members.collect::<Result<_, Error>>()?,
            login: login.map(|(name, password)| json!({ "name": name, "password": password })),
            tls: remote.tls.then(Arc::default),
            limit: remote.connect_timeout,
            learned: Arc::default(),
        })
    }
    /// Opens a connection to the first member that takes it, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        let began = Instant::now();
        let mut failed = None;
        for untried in (1..=self.members.len()).rev() {
            let preferred = self.learned.preferred.load(Ordering::Relaxed);
            let Some(member) = self.members.get(preferred % self.members.len()) else {
                break;
            };
            match self.connect_to(member, preferred, share(limit, began, untried)) {
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

    /// Asks all members for their status. Each has a share of `limit` to connect and reply.
    pub(crate) fn statuses(&self, limit: Duration) -> Vec<(&str, Result<Value, Error>)> {
        let began = Instant::now();
        let numbered = self.members.iter().zip((1..=self.members.len()).rev());
        let told = numbered.map(|(member, untried)| {
            let share = share(limit, began, untried).min(self.limit);
            let status = self.ask(member, None, share, Connection::status);
            (&*member.host, status.map(|(_, status)| status))
        });
        told.collect()
    }

    /// Opens a connection to a member, unless it is of another cluster than the others.
    fn connect_to(
        &self,
        member: &Member,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        if self.members.len() > 1 {
            let asked = self.ask(member, Some(number), limit, Connection::cluster);
            let (connection, cluster) = asked?;
            self.check_cluster(member, cluster)?;
            // A proxy may close a connection after each reply.
            if connection.http.is_quiet() {
                return Ok(connection);
            }
        }
        let left = limit.saturating_sub(began.elapsed());
        self.log_in_to(member, Some(number), left)
    }

    /// Opens a connection to a member and makes a request, within `limit`. If the member does not know the last
    /// login, the connection logs in again.
    pub(super) fn ask<T>(
        &self,
        member: &Member,
        number: Option<usize>,
        limit: Duration,
        request: impl Fn(&mut Connection, Duration) -> Result<T, Error>,
    ) -> Result<(Connection, T), Error> {
        let began = Instant::now();
        let left = || limit.saturating_sub(began.elapsed());
        let mut connection = self.log_in_to(member, number, limit)?;
        let mut reply = request(&mut connection, left());
        if reply.is_err() && connection.login_has_ended() {
            connection = self.log_in_to(member, number, left())?;
            reply = request(&mut connection, left());
        }
        Ok((connection, reply?))
    }

    /// Opens a connection to a member, and logs in if that is wanted.
    fn log_in_to(
        &self,
        member: &Member,
        number: Option<usize>,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let mut connection = self.open(member, number, limit)?;
        let Some(login) = &self.login else {
            return Ok(connection);
        };
        // A member of another cluster may answer only when its own log is as long as the one of the token's cluster. So
        // what is asked aside has a login of its own.
        let known = number.and_then(|_| self.learned.token.lock().clone());
        let left = || limit.saturating_sub(began.elapsed());
        let token = match known {
            Some(token) => token,
            None => {
                let reply = connection.ask("/v3/auth/authenticate", login, left())?;
                let token = reply.get("token").and_then(Value::as_str);
                let is_whole = |token: &&str| token.bytes().all(|byte| byte.is_ascii_graphic());
                let token = token.filter(is_whole).ok_or_else(senseless)?;
                if number.is_some() {
                    *self.learned.token.lock() = Some(token.to_owned());
                }
                if !connection.http.is_quiet() {
                    connection = self.open(member, number, left())?;
                }
                token.to_owned()
            }
        };
        connection.http.add_header("Authorization", &token);
        connection.token = number.map(|_| token);
        Ok(connection)
    }

    fn open(
        &self,
        member: &Member,
        number: Option<usize>,
        limit: Duration,
    ) -> Result<Connection, Error> {
        if limit.is_zero() {
            return Err(member.server.no_time_to_connect());
        }
        let to_connect = number.map_or(limit.min(ASIDE_CONNECT_TIME), |_| limit);
        let stream = member.dialer.dial(&member.server, to_connect)?;
        let server = member.server.clone();
        let http = Http::new(stream, server.clone(), &member.host, self.tls.clone());
        let mut connection = Connection {
            http,
            open: self.learned.counts.add_connection(),
            server,
            member: number,
            token: None,
            learned: Arc::clone(&self.learned),
        };
        // With this header, a member without a leader replies so at once.
        connection
            .http
            .add_header("Grpc-Metadata-hasleader", "true");
        Ok(connection)
    }

    /// Returns the error for a member that needs TLS, if there is one and this connector does not use TLS. `error`
    /// is the error of opening.
    pub(crate) fn wanting_tls(&self, error: Error) -> Error {
        if self.tls.is_some() || error.is_unreachable() || !error.is_retryable() {
            return error;
        }
        match self.members.iter().find(|member| member.speaks_tls()) {
            None => error,
            Some(member) => {
                let server = &member.server;
                let text = format!("{server} speaks TLS; write etcds:// instead of etcd://");
                Error::new(ErrorKind::Incompatible, text).with_source(error)
            }
        }
    }
}

/// Returns the share of one of the `untried` members in the rest of `limit`.
fn share(limit: Duration, began: Instant, untried: usize) -> Duration {
    limit.saturating_sub(began.elapsed()) / u32::try_from(untried).unwrap_or(u32::MAX)
}
