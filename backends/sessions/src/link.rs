//! What each connection of a provider has, whatever its server: the watch over its end, limits of time, and what is known of
//! its session.

use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{
    Counts, Failure, OpenConnection, RestartGrace, Server, SocketWatch, WatchedSocket, unavailable,
};

/// What happens to a session of a provider.
#[derive(Clone, Copy)]
pub(crate) enum SessionEvent {
    /// The server has closed its connection.
    Ended,
    /// A connection is closed on which a reply is missing, and which may be idle for this long. Until the server
    /// notices the end, the session may hold the name that it requested: that name is not busy then.
    Abandoned(Duration),
}

/// Receives what happens to the sessions.
pub(crate) type Listener<I> = Arc<dyn Fn(I, SessionEvent) + Send + Sync>;

/// What the connections of a provider share.
pub struct LinkShared<I> {
    /// The server as errors name it.
    pub server: Server,
    /// What was sent so far, and the open connections.
    pub counts: Arc<Counts>,
    /// The clock that the keepers count on.
    pub clock: Arc<dyn Clock>,
    pub(crate) restart_grace: Duration,
    pub(crate) watch: SocketWatch,
    pub(crate) listener: Listener<I>,
    /// The server of the first connection, if the application makes or lends the connections.
    pub(crate) first_server: Option<OnceLock<String>>,
}

impl<I> LinkShared<I> {
    /// Returns whether the application makes or lends the connections, so that their server has to be checked.
    pub fn is_supplied(&self) -> bool {
        self.first_server.is_some()
    }

    /// Checks that a connection of the application's leads to the server of the first one. `server` is what tells it from
    /// others.
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
    /// Notices the end of the connection, outside of Windows.
    watched: Option<WatchedSocket>,
    grace: RestartGrace,
    /// Whether a reply is missing.
    pub is_in_doubt: bool,
    /// The longest that a reply may take.
    pub limit: Duration,
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
    /// The link of a connection that was just opened. Each reply may take `limit`.
    pub fn new(shared: &Arc<LinkShared<I>>, limit: Duration) -> Self {
        Self {
            shared: Arc::clone(shared),
            open: shared.counts.add_connection(),
            session: None,
            watched: None,
            grace: RestartGrace::new(Duration::ZERO, Duration::ZERO, HostInstant::NEVER),
            is_in_doubt: false,
            limit,
            idle: None,
        }
    }

    /// Counts statements that are about to be sent.
    pub fn add_commands(&self, commands: usize) {
        self.open.counts().add_commands(commands);
    }

    /// Records for how long the server has known its locks.
    pub fn started(&mut self, up: Duration) {
        let shared = &self.shared;
        self.grace = RestartGrace::new(shared.restart_grace, up, shared.clock.now());
    }

    /// Refuses to request a lock while a server that was just started grants none.
    ///
    /// # Errors
    /// [`Failure::Refused`], which says for how long still.
    pub fn check_start(&self) -> Result<(), Failure> {
        let LinkShared { server, clock, .. } = &*self.shared;
        let checked = self.grace.check(server, clock.now());
        checked.map_err(Failure::Refused)
    }

    /// Watches for the end of a session by its socket. Without one, its end is noticed by the next request.
    ///
    /// # Errors
    /// [`Failure::NotSent`] if the thread that watches cannot be started.
    pub fn watch(&mut self, session: I, socket: Option<&Arc<TcpStream>>) -> Result<(), Failure> {
        let listener = Arc::clone(&self.shared.listener);
        let on_end = move || listener(session, SessionEvent::Ended);
        let watched = socket.map(|socket| self.shared.watch.watch(socket, on_end));
        self.watched = watched.transpose().map_err(|error| {
            let text = "the thread that watches connections cannot be started; is the limit of threads or of open files reached?";
            Failure::NotSent(unavailable(text).with_source(error))
        })?;
        self.session = Some(session);
        Ok(())
    }

    /// Forgets the socket: from here on nothing that happens to it concerns the locks.
    pub fn unwatch(&mut self) {
        self.watched = None;
    }

    /// Returns whether the server was seen to have closed the connection.
    pub fn has_ended(&self) -> bool {
        self.watched.as_ref().is_some_and(WatchedSocket::has_ended)
    }
}
