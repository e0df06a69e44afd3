//! What all connections of a provider have, whatever the server: the watch for their end, their time limits, and
//! the state of their session.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{
    Counts, Failure, OpenConnection, RestartGrace, Server, SocketWatch, WatchedSocket, unavailable,
};

/// An event of a session.
#[derive(Clone, Copy)]
pub(crate) enum SessionEvent {
    /// The server has closed its connection.
    Ended,
    /// A connection with a missing reply was closed. Its session may be idle for this long. Until the server
    /// notices the end, the session may hold the name that it requested, and that name does not count as busy.
    Abandoned(Duration),
}

/// Receives the events of sessions.
pub(crate) type Listener<I> = Arc<dyn Fn(I, SessionEvent) + Send + Sync>;

/// What the connections of a provider share.
pub struct LinkShared<I> {
    /// The server as errors name it.
    pub server: Server,
    /// The counts of sent commands and open connections.
    pub counts: Arc<Counts>,
    /// The clock of the keepers.
    pub clock: Arc<dyn Clock>,
    pub(crate) restart_grace: Duration,
    pub(crate) watch: SocketWatch,
    pub(crate) listener: Listener<I>,
    /// The round trip in ns; 0 if it is not known.
    pub(crate) round_trip: AtomicU64,
    /// The server of the first connection, if the application makes or lends the connections.
    pub(crate) first_server: Option<OnceLock<String>>,
}

impl<I> LinkShared<I> {
    /// Returns about how long the server's reply to a request without a wait takes; zero before the first one.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Records how long a reply took. One that took much longer than the one before waited in the server, and says
    /// little about the network.
    pub(crate) fn replied_after(&self, took: Duration) {
        let took = match self.round_trip() {
            Duration::ZERO => took,
            before => took.min(2 * before),
        };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip.store(nanos, Ordering::Relaxed);
    }

    /// Returns whether the application makes or lends the connections, so that their server has to be checked.
    pub fn is_supplied(&self) -> bool {
        self.first_server.is_some()
    }

    /// Checks that a connection of the application leads to the same server as the first one. `server` identifies
    /// it.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] for another server.
    pub fn check_server(&self, server: &str) -> Result<(), Error> {
        let Some(first) = &self.first_server else {
            return Ok(());
        };
        match first.get_or_init(|| server.to_owned()) {
            first if first == server => Ok(()),
            first => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the application's function gave connections to two servers ({first}; {server}), and locks on one do not exclude locks on the other; have the function connect to one server, and open the keeper again when the server moves"
                ),
            )),
        }
    }
}

/// The part of a connection that is the same on all servers. `I` is the identity of a session.
pub struct SessionLink<I: Copy> {
    /// What the connections share.
    pub shared: Arc<LinkShared<I>>,
    open: OpenConnection,
    /// The session, once its end is watched for.
    session: Option<I>,
    /// Notices the end of the connection.
    watched: Option<WatchedSocket>,
    grace: RestartGrace,
    /// Whether a reply is missing.
    pub is_in_doubt: bool,
    /// When the replies to the requests of the current call have to be there.
    until: Instant,
    /// The time after which the server ends the idle session, if it was set.
    pub idle: Option<Duration>,
}

impl<I: Copy> Drop for SessionLink<I> {
    fn drop(&mut self) {
        if let (true, Some(session), Some(idle)) = (self.is_in_doubt, self.session, self.idle) {
            (self.shared.listener)(session, SessionEvent::Abandoned(idle));
        }
    }
}

impl<I: Copy + Send + 'static> SessionLink<I> {
    /// Makes the link of a new connection. The replies to its first requests may take `limit` together.
    pub fn new(shared: &Arc<LinkShared<I>>, limit: Duration) -> Self {
        Self {
            shared: Arc::clone(shared),
            open: shared.counts.add_connection(),
            session: None,
            watched: None,
            grace: RestartGrace::new(Duration::ZERO, Duration::ZERO, HostInstant::NEVER),
            is_in_doubt: false,
            until: Instant::now() + limit,
            idle: None,
        }
    }

    /// Begins a call: the replies to all its requests may take `limit` together.
    pub fn set_limit(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }

    /// Returns how long the next reply of the call may take.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Counts statements that are about to be sent.
    pub fn add_commands(&self, commands: usize) {
        self.open.add_commands(commands);
    }

    /// Records for how long the server has had its locks.
    pub fn started(&mut self, up: Duration) {
        let shared = &self.shared;
        self.grace = RestartGrace::new(shared.restart_grace, up, shared.clock.now());
    }

    /// Returns an error while a server that was just started grants no locks.
    ///
    /// # Errors
    /// [`Failure::Refused`], whose text has the remaining time.
    pub fn check_start(&self) -> Result<(), Failure> {
        let LinkShared { server, clock, .. } = &*self.shared;
        let checked = self.grace.check(server, clock.now());
        checked.map_err(Failure::Refused)
    }

    /// Watches for the end of a session by its socket.
    ///
    /// # Errors
    /// [`Failure::NotSent`] if the thread that watches cannot be started.
    pub fn watch(&mut self, session: I, socket: &Arc<TcpStream>) -> Result<(), Failure> {
        let listener = Arc::clone(&self.shared.listener);
        let on_end = move || listener(session, SessionEvent::Ended);
        let watched = self.shared.watch.watch(socket, on_end).map_err(|error| {
            let text = "the thread that watches connections cannot be started; is the limit of threads or of open files reached?";
            Failure::NotSent(unavailable(text).with_source(error))
        })?;
        self.watched = Some(watched);
        self.session = Some(session);
        Ok(())
    }

    /// Stops watching the socket. From here on, its events do not concern the locks.
    pub fn unwatch(&mut self) {
        self.watched = None;
    }

    /// Returns whether the server was seen to have closed the connection.
    pub fn has_ended(&self) -> bool {
        self.watched.as_ref().is_some_and(WatchedSocket::has_ended)
    }
}
