//! Opens connections to the members in turn, within a session or with a new one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Member, Members, is_timeout, is_untrusted, senseless};

use super::{AUTH, Connection, Learned};
use crate::options::ZooKeeperOptions;
use crate::wire::{Acl, Code, Decoder, Request, put_buffer};

/// How long a member has to answer a greeting before another one is tried, and at last the same again, for twice as long. A
/// server that starts never answers some of its first connections.
const FIRST_ANSWER: Duration = Duration::from_millis(500);

/// The first byte of what a server says that expects TLS.
const ALERT: u8 = 21;

/// A session of ZooKeeper.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: i64,
    password: Vec<u8>,
    /// How long it lives without a request.
    pub(crate) timeout: Duration,
}

/// The members of an ensemble, and how to connect to them.
pub(crate) struct Connector {
    /// The user and password.
    digest: Option<String>,
    has_tls: bool,
    connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) learned: Arc<Learned>,
}

/// How a member did not open a connection.
enum Unopened {
    /// It has closed the connection instead of an answer.
    TurnedAway(Error),
    /// It has not answered yet.
    Silent(Error),
    Failed(Error),
}

impl Connector {
    pub(crate) fn new(options: &ZooKeeperOptions) -> Result<Self, Error> {
        let remote = &options.remote;
        let login = remote.user.as_ref().zip(remote.password.as_ref());
        Ok(Self {
            digest: login.map(|(user, password)| format!("{user}:{password}")),
            has_tls: remote.tls,
            connect_timeout: remote.connect_timeout,
            response_timeout: remote.response_timeout,
            learned: Arc::new(Learned {
                members: Members::new("ZooKeeper", remote)?,
                zxid: AtomicI64::default(),
                counts: Arc::default(),
            }),
        })
    }

    /// Returns who gets the rights of nodes.
    pub(crate) fn acl(&self) -> Acl {
        match self.digest {
            Some(_) => Acl::Creator,
            None => Acl::Anyone,
        }
    }

    pub(crate) fn members(&self) -> &[Member] {
        self.learned.members.all()
    }

    /// Opens a connection to the first member that takes it, within `left` and the connect timeout. The session lives for
    /// `timeout` without a request, or for what the server makes of that. `None` if the session to go on with has ended.
    pub(crate) fn connect(
        &self,
        session: Option<&Session>,
        timeout: Duration,
        left: Duration,
    ) -> Result<Option<(Connection, Session)>, Error> {
        let limit = left.min(self.connect_timeout);
        let began = Instant::now();
        let left = || limit.saturating_sub(began.elapsed());
        let (mut failed, mut patience) = (None, FIRST_ANSWER);
        loop {
            let (mut turned_away, mut is_silent) = (0, false);
            let members = &self.learned.members;
            let opened = members.connect(left(), |member, number, share| {
                let opened = self.connect_to((member, number), session, timeout, share, patience);
                opened.map_err(|unopened| match unopened {
                    Unopened::TurnedAway(error) => {
                        turned_away += 1;
                        error
                    }
                    Unopened::Silent(error) => {
                        is_silent = true;
                        error
                    }
                    Unopened::Failed(error) => error,
                })
            });
            match opened {
                Err(error) if error.is_retryable() => failed = failed.or(Some(error)),
                opened => return opened,
            }
            if turned_away == self.members().len() {
                // All members may know less than was seen: their data were removed. Sessions are gone then.
                self.learned.zxid.store(0, Ordering::Release);
            }
            if !is_silent || left().is_zero() {
                break;
            }
            patience *= 2;
        }
        Err(failed.unwrap_or_else(senseless))
    }

    /// Returns the shortest time-out of a session that the servers take, within `left`.
    pub(crate) fn shortest_session(&self, left: Duration) -> Result<Duration, Error> {
        let began = Instant::now();
        loop {
            let left = left.saturating_sub(began.elapsed());
            // The server raises the time-out to the shortest one.
            match self.connect(None, Duration::from_millis(1), left) {
                Ok(opened) => {
                    let (mut connection, session) = opened.ok_or_else(senseless)?;
                    let _ = connection.ask(&[Request::close()], left);
                    return Ok(session.timeout);
                }
                // On a busy server, so short a session may end before the server answers.
                Err(error) if error.is_retryable() && !left.is_zero() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn connect_to(
        &self,
        (member, number): (&Member, usize),
        session: Option<&Session>,
        timeout: Duration,
        limit: Duration,
        patience: Duration,
    ) -> Result<Option<(Connection, Session)>, Unopened> {
        let began = Instant::now();
        let (stream, server) = (member.dial(limit), member.server());
        let stream = stream.map_err(Unopened::Failed)?;
        let mut connection = Connection {
            stream,
            unread: Vec::new(),
            number: 1,
            server: server.clone(),
            member: number,
            learned: Arc::clone(&self.learned),
            counted: Some(self.learned.counts.add_connection()),
        };
        let left = || limit.saturating_sub(began.elapsed());
        connection.stream.begin(left().min(patience));
        let answer = connection.greet(session, timeout);
        let answer = answer.map_err(|error| self.unopened(&connection, error))?;
        let opened = read_answer(&answer);
        let opened = opened.ok_or_else(|| Unopened::Failed(server.wrong_protocol("?")))?;
        // That is how a server says that the session has ended.
        if opened.id == 0 {
            return match session {
                Some(_) => Ok(None),
                None => Err(Unopened::Failed(senseless())),
            };
        }
        if let Some(digest) = &self.digest {
            connection
                .log_in(digest, left())
                .map_err(Unopened::Failed)?;
        }
        Ok(Some((connection, opened)))
    }

    /// Returns the error of a member that has not answered the greeting.
    fn unopened(&self, connection: &Connection, error: io::Error) -> Unopened {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, UnexpectedEof};
        let (server, text) = (&connection.server, error.to_string());
        let has_begun = !connection.unread.is_empty();
        let described = match error.kind() {
            kind if is_timeout(kind) => {
                return Unopened::Silent(server.says_nothing("").with_source(error));
            }
            _ if self.has_tls && is_untrusted(&text) => {
                return Unopened::Failed(server.untrusted(&text));
            }
            _ if connection.stream_is_foreign() => server.wrong_protocol("?"),
            _ if connection.unread.first() == Some(&ALERT) => Error::new(
                ErrorKind::Incompatible,
                format!("{server} speaks TLS; write zookeepers:// instead of zookeeper://"),
            ),
            InvalidData if self.has_tls => {
                server.wrong_protocol(" with TLS, and does it accept this client's certificate?")
            }
            InvalidData => server.wrong_protocol("?"),
            UnexpectedEof | ConnectionReset | BrokenPipe if has_begun => server.unreachable(&error),
            UnexpectedEof | ConnectionReset | BrokenPipe => {
                let described = server.unreachable(
                    "it takes connections and closes them; a member without a leader does so, one that only reads, one that \
                     others' data have overtaken, one with as many connections as its maxClientCnxns, and one that expects TLS",
                );
                return Unopened::TurnedAway(described.with_source(error));
            }
            _ => server.unreachable(&error),
        };
        Unopened::Failed(described.with_source(error))
    }
}

impl Connection {
    /// Asks for a session, and returns the answer.
    fn greet(&mut self, session: Option<&Session>, timeout: Duration) -> io::Result<Vec<u8>> {
        let mut greeting = 0_i32.to_be_bytes().to_vec();
        greeting.extend(self.learned.zxid().to_be_bytes());
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        greeting.extend(timeout.to_be_bytes());
        greeting.extend(session.map_or(0, |session| session.id).to_be_bytes());
        match session {
            Some(session) => put_buffer(&mut greeting, &session.password),
            None => put_buffer(&mut greeting, &[0; 16]),
        }
        // A member that only reads refuses the session then.
        greeting.push(0);
        let mut message = Vec::new();
        put_buffer(&mut message, &greeting);
        self.write(&message)?;
        self.next()
    }

    /// Returns whether the first bytes are letters, as those of a server of another kind.
    fn stream_is_foreign(&self) -> bool {
        let first = self.unread.get(..4);
        first.is_some_and(|it| {
            it.iter()
                .all(|byte| byte.is_ascii_graphic() || *byte == b' ')
        })
    }

    fn log_in(&mut self, digest: &str, limit: Duration) -> Result<(), Error> {
        let cut = |connection: &Self, error: io::Error| {
            let server = &connection.server;
            match is_timeout(error.kind()) {
                true => server.says_nothing(""),
                // A server that refuses the login says so before it closes the connection.
                false => server.unreachable(&error).with_source(error),
            }
        };
        let sent = self.send_as(AUTH, &Request::auth(digest), limit);
        sent.map_err(|error| cut(self, error))?;
        loop {
            match self.take_reply().map_err(|error| cut(self, error))? {
                Some(reply) if reply.number == AUTH => {
                    return reply.done().map_err(Code::error);
                }
                Some(_) => {}
                None => self.fill().map_err(|error| cut(self, error))?,
            }
        }
    }
}

/// Reads the answer to a greeting.
fn read_answer(answer: &[u8]) -> Option<Session> {
    let mut from = Decoder(answer);
    let _version = from.int()?;
    let timeout = u64::try_from(from.int()?).ok()?;
    Some(Session {
        id: from.long()?,
        password: from.buffer()?.to_vec(),
        timeout: Duration::from_millis(timeout),
    })
}
