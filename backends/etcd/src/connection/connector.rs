//! Opens connections to the members in turn, and logs in.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Http, Member, Members, senseless};
use parking_lot::Mutex;
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

/// A member of the cluster: see [`EtcdMembers`](super::EtcdMembers).
pub(super) type EtcdMember = Member<AtomicU64>;

/// Returns whether the member replies to an invalid handshake as TLS does.
fn speaks_tls(member: &EtcdMember) -> bool {
    let Ok(mut stream) = member.dial(ASIDE_CONNECT_TIME) else {
        return false;
    };
    stream.begin(ASIDE_CONNECT_TIME);
    let mut first = [0];
    let sent = stream.write_all(&NO_HANDSHAKE);
    let read = sent.and_then(|()| stream.read_exact(&mut first));
    read.is_ok() && first == [ALERT]
}

/// The members of a cluster, and how to connect to them.
pub(crate) struct Connector {
    login: Option<Value>,
    /// With TLS: whether a member has replied.
    tls: Option<Arc<AtomicBool>>,
    pub(super) limit: Duration,
    pub(crate) learned: Arc<Learned>,
}

impl Connector {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, Error> {
        let remote = &options.remote;
        let login = remote.user.as_ref().zip(remote.password.as_ref());
        Ok(Self {
            login: login.map(|(name, password)| json!({ "name": name, "password": password })),
            tls: remote.tls.then(Arc::default),
            limit: remote.connect_timeout,
            learned: Arc::new(Learned {
                members: Members::new("etcd", remote)?,
                token: Mutex::default(),
                counts: Arc::default(),
            }),
        })
    }

    pub(super) fn members(&self) -> &[EtcdMember] {
        self.learned.members.all()
    }

    /// Opens a connection to the first member that takes it, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let members = &self.learned.members;
        members.connect(left, |member, number, limit| {
            self.connect_to(member, number, limit)
        })
    }

    /// Asks all members for their status. Each has a share of `limit` to connect and reply.
    pub(crate) fn statuses(&self, limit: Duration) -> Vec<(&str, Result<Value, Error>)> {
        self.learned.members.ask_all(limit, |member, share| {
            let status = self.ask(member, None, share.min(self.limit), Connection::status);
            (member.server().address(), status.map(|(_, status)| status))
        })
    }

    /// Opens a connection to a member, unless it is of another cluster than the others.
    fn connect_to(
        &self,
        member: &EtcdMember,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        if self.members().len() > 1 {
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
        member: &EtcdMember,
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
        member: &EtcdMember,
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
        member: &EtcdMember,
        number: Option<usize>,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let to_connect = number.map_or(limit.min(ASIDE_CONNECT_TIME), |_| limit);
        let stream = member.dial(to_connect)?;
        let server = member.server().clone();
        let http = Http::new(stream, server.clone(), server.address(), self.tls.clone());
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
        match self.members().iter().find(|member| speaks_tls(member)) {
            None => error,
            Some(member) => {
                let server = member.server();
                let text = format!("{server} speaks TLS; write etcds:// instead of etcd://");
                Error::new(ErrorKind::Incompatible, text).with_source(error)
            }
        }
    }
}
