//! One connection to a member, and how it is opened.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{CancelToken, Error, ErrorKind};
use lockkeeper_remote::{
    Counts, Dialer, Failure, Http, HttpReply, OpenConnection, Server, nothing_granted, senseless,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::failure::{Meaning, meaning};
use crate::options::EtcdOptions;
use crate::wire::encoded;

/// The number of a connection that serves no requests: its failure is no reason to leave the member that does.
const ASIDE: usize = usize::MAX;
/// The longest time to connect to such a member. Its reply may take longer: a login costs the server some 50 ms of CPU.
const ASIDE_CONNECT_TIME: Duration = Duration::from_millis(500);

/// The largest message of a watch that is read: some 10,000 events.
const LONGEST_MESSAGE: usize = 4 << 20;

/// A member of the cluster.
struct Member {
    dialer: Dialer,
    server: Server,
    /// The id of the member's cluster, as the member told it last; 0 if unknown.
    cluster: AtomicU64,
    /// As it is named in the head of a request.
    host: String,
}

/// A record of TLS that is no handshake.
const NO_HANDSHAKE: [u8; 10] = [22, 3, 1, 0, 5, 1, 0, 0, 1, 0];
/// The first byte of TLS's alerts.
const ALERT: u8 = 21;

impl Member {
    /// Returns whether the member answers what is no handshake as TLS does.
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

/// Opens connections to the members in turn.
pub(crate) struct Connector {
    members: Vec<Member>,
    /// The member that is asked first, a number that only grows.
    preferred: Arc<AtomicUsize>,
    login: Option<Value>,
    /// What the last login gave.
    token: Arc<Mutex<Option<String>>>,
    /// With TLS: whether a member has replied.
    tls: Option<Arc<AtomicBool>>,
    limit: Duration,
    pub(crate) counts: Arc<Counts>,
}

impl Connector {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, Error> {
        let remote = &options.remote;
        let member = |endpoint: &lockkeeper_remote::Endpoint| {
            Ok(Member {
                dialer: Dialer::new(&remote.at(endpoint.clone()))?,
                server: Server::new("etcd", endpoint),
                cluster: AtomicU64::default(),
                host: endpoint.to_string(),
            })
        };
        let login = remote.user.as_ref().zip(remote.password.as_ref());
        Ok(Self {
            members: options
                .members
                .iter()
                .map(member)
                .collect::<Result<_, Error>>()?,
            preferred: Arc::default(),
            login: login.map(|(name, password)| json!({ "name": name, "password": password })),
            token: Arc::default(),
            tls: remote.tls.then(Arc::default),
            limit: remote.connect_timeout,
            counts: Arc::default(),
        })
    }

    /// Returns the number of members.
    pub(crate) fn members(&self) -> usize {
        self.members.len()
    }

    /// Opens a connection to the first member that takes it, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        let began = Instant::now();
        let mut failed = None;
        for untried in (1..=self.members.len()).rev() {
            let preferred = self.preferred.load(Ordering::Relaxed);
            let Some(member) = self.members.get(preferred % self.members.len()) else {
                break;
            };
            let share = limit.saturating_sub(began.elapsed());
            let share = share / u32::try_from(untried).unwrap_or(u32::MAX);
            match self.connect_to(member, preferred, share) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    self.avoid(preferred);
                    if !error.is_retryable() {
                        return Err(error);
                    }
                    failed = failed.or(Some(error));
                }
            }
        }
        Err(failed.unwrap_or_else(senseless))
    }

    /// Compares the clusters of all members that are in reach, within `limit`.
    pub(crate) fn compare(&self, limit: Duration) -> Result<(), Error> {
        let unknown = |member: &&Member| member.cluster.load(Ordering::Relaxed) == 0;
        if self.members.len() == 1 {
            return Ok(());
        }
        // At the same time, so that members which are cut off take the time of one.
        let answers: Vec<_> = thread::scope(|scope| {
            let unknown = self.members.iter().filter(unknown);
            let asked: Vec<_> = unknown
                .map(|member| {
                    let ask = move || self.cluster_of(member, limit);
                    (member, thread::Builder::new().spawn_scoped(scope, ask))
                })
                .collect();
            let told = asked
                .into_iter()
                .map(|(member, thread)| Some((member, thread.ok()?.join().ok()?.ok()?)));
            told.flatten().collect()
        });
        answers
            .into_iter()
            .try_for_each(|(member, cluster)| self.check(member, cluster))
    }

    /// Asks all members for their status. Each has a share of `limit` to connect and reply.
    pub(crate) fn statuses(&self, limit: Duration) -> Vec<(&str, Result<Value, Error>)> {
        let began = Instant::now();
        let numbered = self.members.iter().zip((1..=self.members.len()).rev());
        let told = numbered.map(|(member, untried)| {
            let untried = u32::try_from(untried).unwrap_or(u32::MAX);
            let share = limit.saturating_sub(began.elapsed()) / untried;
            let share = share.min(self.limit);
            let status = self.ask(member, ASIDE, share, Connection::status);
            (&*member.host, status.map(|(_, status)| status))
        });
        told.collect()
    }

    fn cluster_of(&self, member: &Member, limit: Duration) -> Result<u64, Error> {
        let told = self.ask(member, ASIDE, limit, Connection::cluster);
        Ok(told?.1)
    }

    /// Opens a connection to a member, unless it is of another cluster than the others.
    fn connect_to(
        &self,
        member: &Member,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        if self.members.len() == 1 {
            return self.log_in_to(member, number, limit);
        }
        let began = Instant::now();
        let (connection, cluster) = self.ask(member, number, limit, Connection::cluster)?;
        self.check(member, cluster)?;
        match connection.http.is_quiet() {
            true => Ok(connection),
            // A proxy may close a connection after each reply.
            false => self.log_in_to(member, number, limit.saturating_sub(began.elapsed())),
        }
    }

    /// Opens a connection to a member and makes a request, within `limit`. If the member does not know the last login,
    /// the connection logs in anew.
    fn ask<T>(
        &self,
        member: &Member,
        number: usize,
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

    /// Refuses a member that is not in the cluster of the other listed members.
    ///
    /// A cluster may have been made anew at its addresses. So a silent member of the former cluster is ignored if this
    /// member was in it as well.
    fn check(&self, member: &Member, cluster: u64) -> Result<(), Error> {
        let order = Ordering::Relaxed;
        let former = member.cluster.load(order);
        let mut told = vec![(member, cluster)];
        for other in &self.members {
            let known = other.cluster.load(order);
            if std::ptr::eq(other, member) || [0, cluster].contains(&known) {
                continue;
            }
            match self.cluster_of(other, self.limit / 4) {
                Ok(now) if now == cluster => told.push((other, now)),
                Err(error) if former == known && error.is_retryable() => told.push((other, 0)),
                _ => return Err(other_cluster(member, other)),
            }
        }
        for (member, cluster) in told {
            member.cluster.store(cluster, order);
        }
        Ok(())
    }

    /// Opens a connection to a member, and logs in if that is wanted.
    fn log_in_to(
        &self,
        member: &Member,
        number: usize,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let mut connection = self.open(member, number, limit)?;
        let Some(login) = &self.login else {
            return Ok(connection);
        };
        // A member of another cluster may answer only when its own log is as long as the one of the token's cluster.
        let known = match number {
            ASIDE => None,
            _ => self.token.lock().clone(),
        };
        let left = || limit.saturating_sub(began.elapsed());
        let token = match known {
            Some(token) => token,
            None => {
                let reply = connection.call("/v3/auth/authenticate", login, left());
                let reply = reply.map_err(nothing_granted)?;
                let token = reply.get("token").and_then(Value::as_str);
                let is_whole = |token: &&str| token.bytes().all(|byte| byte.is_ascii_graphic());
                let token = token.filter(is_whole).ok_or_else(senseless)?;
                if number != ASIDE {
                    *self.token.lock() = Some(token.to_owned());
                }
                if !connection.http.is_quiet() {
                    connection = self.open(member, number, left())?;
                }
                token.to_owned()
            }
        };
        connection.http.add_header("Authorization", &token);
        connection.token = (number != ASIDE).then_some(token);
        Ok(connection)
    }

    fn open(&self, member: &Member, number: usize, limit: Duration) -> Result<Connection, Error> {
        if limit.is_zero() {
            return Err(member.server.no_time_to_connect());
        }
        let to_connect = match number {
            ASIDE => limit.min(ASIDE_CONNECT_TIME),
            _ => limit,
        };
        let stream = member.dialer.dial(&member.server, to_connect)?;
        let server = member.server.clone();
        let mut http = Http::new(stream, server.clone(), &member.host, self.tls.clone());
        // A member without a leader says so at once.
        http.add_header("Grpc-Metadata-hasleader", "true");
        Ok(Connection {
            http,
            open: self.counts.add_connection(),
            server,
            member: number,
            preferred: Arc::clone(&self.preferred),
            token: None,
            tokens: Arc::clone(&self.token),
            unread: Vec::new(),
            searched: 0,
        })
    }

    /// Returns the error for a member that wants TLS, if there is one and this connector speaks none. `error` is why it
    /// was not opened.
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

    /// Makes the next connection lead to another member than the one of this number.
    fn avoid(&self, member: usize) {
        avoid(&self.preferred, member);
    }
}

fn avoid(preferred: &AtomicUsize, member: usize) {
    let (set, next) = (Ordering::Relaxed, member.wrapping_add(1));
    // It fails if another thread has done so.
    let _ = preferred.compare_exchange(member, next, set, set);
}

/// A connection; dropping it closes it.
pub(crate) struct Connection {
    http: Http,
    open: OpenConnection,
    server: Server,
    member: usize,
    preferred: Arc<AtomicUsize>,
    token: Option<String>,
    tokens: Arc<Mutex<Option<String>>>,
    /// The bytes of the next messages of a watch that have come so far.
    unread: Vec<u8>,
    /// How many of its bytes were searched, and have no end of a message.
    searched: usize,
}

impl lockkeeper_remote::Connection for Connection {
    /// A connection to a member that another one has replaced takes no more requests.
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.member == self.preferred.load(Ordering::Relaxed) && self.http.is_quiet()
    }
}

impl Connection {
    /// Returns the socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.http.socket()
    }

    /// Returns what closes the connection from another thread, also while a reply is waited for.
    fn closer(&self) -> impl Fn() + Send + Sync + 'static {
        let socket = Arc::clone(self.http.socket());
        move || drop(socket.shutdown(Shutdown::Both))
    }

    /// Returns whether new connections do not use the login of this one.
    fn login_has_ended(&self) -> bool {
        self.token.is_some() && *self.tokens.lock() != self.token
    }

    /// Sends a request and reads the reply.
    pub(crate) fn call(
        &mut self,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Value, Failure> {
        self.cancellable(path, body, limit, None)
    }

    /// As [`call`](Self::call), but a cancel closes the connection. That is no failure of the member.
    pub(crate) fn cancellable(
        &mut self,
        path: &str,
        body: &Value,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<Value, Failure> {
        self.open.counts().add_commands(1);
        let registered = cancel.map(|cancel| cancel.on_cancel(self.closer()));
        let reply = self.http.post(path, body.to_string().as_bytes(), limit);
        drop(registered);
        if cancel.is_some_and(CancelToken::is_cancelled) {
            return Err(Failure::Unanswered(Error::new(
                ErrorKind::Unknown,
                "the acquisition was cancelled before a reply came",
            )));
        }
        let reply = self.noted(reply)?;
        if reply.status == 200
            && let Ok(value) = serde_json::from_slice::<Value>(&reply.body)
            && (has_header(&value) || path.starts_with("/v3/maintenance/"))
        {
            return Ok(value);
        }
        Err(self.refused(&reply))
    }

    /// Asks for the member's status. A user who may not have it, which etcd checks from 3.5 on, gets the header alone.
    fn status(&mut self, limit: Duration) -> Result<Value, Error> {
        let status = self.call("/v3/maintenance/status", &json!({}), limit);
        match status.map_err(nothing_granted) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.header(limit),
            status => status,
        }
    }

    /// Asks for a reply with a header. Each user who may lock may read the key, which need not exist.
    fn header(&mut self, limit: Duration) -> Result<Value, Error> {
        let body = json!({ "key": encoded("lockkeeper/"), "serializable": true });
        let reply = self.call("/v3/kv/range", &body, limit);
        reply.map_err(nothing_granted)
    }

    /// Asks for the id of the member's cluster.
    fn cluster(&mut self, limit: Duration) -> Result<u64, Error> {
        let reply = self.header(limit)?;
        let id = reply.pointer("/header/cluster_id").and_then(Value::as_str);
        id.and_then(|id| id.parse().ok()).ok_or_else(senseless)
    }

    /// Begins to watch; [`next_message`](Self::next_message) reads what comes.
    pub(crate) fn watch(&mut self, requests: &str, limit: Duration) -> Result<(), Failure> {
        self.open.counts().add_commands(1);
        let reply = self
            .http
            .post_for_stream("/v3/watch", requests.as_bytes(), limit);
        match self.noted(reply)? {
            None => Ok(()),
            Some(reply) => Err(self.refused(&reply)),
        }
    }

    /// Waits for the next message of a watch, within `limit` if there is one. `None` is the end.
    pub(crate) fn next_message(
        &mut self,
        limit: Option<Duration>,
    ) -> Result<Option<Value>, Failure> {
        loop {
            // A message is a line, and a long one comes in several chunks.
            let read = self.unread.get(self.searched..).unwrap_or_default();
            if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                self.searched = 0;
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let message = serde_json::from_slice(&line);
                return message.map_err(|_| Failure::Refused(senseless()));
            }
            self.searched = self.unread.len();
            match self.http.next_chunk(limit)? {
                Some(chunk) if self.searched < LONGEST_MESSAGE => self.unread.extend(chunk),
                Some(_) => return Err(Failure::Refused(senseless())),
                None => return Ok(None),
            }
        }
    }

    /// Leaves a member that does not reply to the connections that come. They log in anew: a cluster that was made anew
    /// may not reply to the former token.
    fn noted<T>(&self, reply: Result<T, Failure>) -> Result<T, Failure> {
        if reply.is_err() {
            avoid(&self.preferred, self.member);
            self.forget_login();
        }
        reply
    }

    fn forget_login(&self) {
        let mut token = self.tokens.lock();
        if *token == self.token {
            *token = None;
        }
    }

    fn refused(&self, reply: &HttpReply) -> Failure {
        match meaning(&self.server, reply.status, &reply.body) {
            Meaning::Other(failure) => {
                if matches!(failure, Failure::Unanswered(_)) {
                    avoid(&self.preferred, self.member);
                }
                failure
            }
            Meaning::MemberUnfit(error) => {
                avoid(&self.preferred, self.member);
                Failure::Closed(error)
            }
            Meaning::LoginGone => {
                self.forget_login();
                Failure::Closed(self.server.closed())
            }
        }
    }
}

/// Returns whether a reply is etcd's: all that a lock needs have a header, and those to keep-alives have it inside of a
/// result.
fn has_header(reply: &Value) -> bool {
    let header = reply.get("header");
    header.or_else(|| reply.pointer("/result/header")).is_some()
}

fn other_cluster(member: &Member, other: &Member) -> Error {
    let (host, other) = (&member.host, &other.host);
    let text = format!(
        "the etcd servers at {host} and {other} are of two clusters; name the members of one cluster in the URL, and restart the program if the cluster was replaced"
    );
    Error::new(ErrorKind::Incompatible, text)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns a watch of a server that sends these chunks again and again.
    fn watch(chunks: &'static [&'static str]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = EtcdOptions::tcp("127.0.0.1", listener.local_addr().unwrap().port());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let mut reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
            loop {
                for chunk in chunks {
                    reply += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
                }
                // Until the client closes the connection.
                if stream.write_all(reply.as_bytes()).is_err() {
                    return;
                }
                reply.clear();
            }
        });
        let mut connection = Connector::new(&options).unwrap().connect(LIMIT).unwrap();
        connection.watch("{}", LIMIT).unwrap();
        connection
    }

    #[test]
    fn messages_of_a_watch_are_lines_of_any_chunks() {
        let mut connection = watch(&["1", "2\n34\n5", "\n"]);
        for expected in [12, 34, 5, 12, 34] {
            let message = connection.next_message(Some(LIMIT)).unwrap();
            assert_eq!(message, Some(expected.into()));
        }
    }

    #[test]
    fn message_without_an_end_is_refused() {
        let mut connection = watch(&["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]);
        assert!(connection.next_message(Some(LIMIT)).is_err());
        assert!(connection.unread.len() <= LONGEST_MESSAGE + 48);
    }
}
