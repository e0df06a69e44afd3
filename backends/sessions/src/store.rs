//! The store of a provider: its pool of connections, and a connection that becomes a session by the first request for a
//! name.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, CancelToken, Capabilities, Capability, Clock, Error, Grant, HostInstant,
    LeaseVerifier, ReleaseDispatch, SentRelease, Usage,
};
use lockkeeper_remote::{Failure, Pool, PooledConn, RemoteOptions, unknown, until_cancelled};

use crate::connection::SessionConnection;
use crate::lease::SessionLease;
use crate::link::LinkShared;
use crate::requests::{Attempted, Requests};
use crate::session::Session;
use crate::sessions::Sessions;
use crate::state::Entry;

/// The pause between two checks whether a session has ended.
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// How many operations travel together.
const BATCH: usize = 256;

/// Opens a connection within a limit.
type Connect<C> = Arc<dyn Fn(Duration) -> Result<C, Error> + Send + Sync>;

/// The verbs of a [`Backend`](lockkeeper_core::Backend) whose locks are held by sessions, over a pool of
/// connections.
///
/// A connection holds no name while it is in the pool. A connection that holds names belongs to a session, and
/// counts for the pool all the same.
pub struct SessionStore<C: SessionConnection> {
    /// The options of the pool and of the connections.
    pub options: RemoteOptions,
    /// The namespace of the names.
    pub namespace: String,
    /// The clock that the keepers count on.
    pub clock: Arc<dyn Clock>,
    pub(crate) sessions: Arc<Sessions<C>>,
    pub(crate) pool: Pool<C>,
    pub(crate) link: Arc<LinkShared<C::Id>>,
    connect: Connect<C>,
}

impl<C: SessionConnection> fmt::Debug for SessionStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore")
            .field("server", &self.link.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Attempts that were made on a session.
pub(crate) struct Made<C: SessionConnection> {
    pub(crate) session: Arc<Session<C>>,
    pub(crate) attempted: Vec<Attempted>,
    /// A time before the names were requested.
    pub(crate) asked_at: HostInstant,
}

impl<C: SessionConnection> SessionStore<C> {
    /// A store with one connection, which `connect` opened. `connect` opens further ones as they are needed,
    /// within the time that it gets.
    pub fn new(
        options: &RemoteOptions,
        namespace: &str,
        sessions: Arc<Sessions<C>>,
        first: C,
        connect: impl Fn(Duration) -> Result<C, Error> + Send + Sync + 'static,
    ) -> Self {
        let pool = Pool::of(options);
        let link = Arc::clone(&first.link().shared);
        if let Some(mut slot) = pool.try_checkout() {
            slot.connection = Some(first);
        }
        Self {
            options: options.clone(),
            namespace: namespace.to_owned(),
            clock: Arc::clone(&sessions.clock),
            sessions,
            pool,
            link,
            connect: Arc::new(connect),
        }
    }

    /// Returns the URL of the namespace: see [`StoreInfo::location`](lockkeeper_core::StoreInfo::location). `db` is the
    /// database, where each has locks of its own.
    pub fn location(&self, scheme: &str, db: Option<&str>) -> String {
        let keys = [("namespace", self.namespace.as_str())];
        self.options.location(scheme, db, &keys)
    }

    /// Returns what was sent so far, and how many connections are open.
    pub fn usage(&self) -> Usage {
        self.link.counts.usage()
    }

    /// Returns the capabilities of all stores with sessions.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with(Capability::DeadOwnerTakeOver)
            .with(Capability::CommitProof)
            .with_batch(BATCH)
            .with_attempt_limit(self.options.attempt_time())
    }

    /// Registers a keeper that verifies its leases when a session has ended: see
    /// [`Backend::watch_leases`](lockkeeper_core::Backend::watch_leases).
    pub fn watch_leases(&self, verifier: LeaseVerifier) {
        self.sessions.verifiers.add(verifier);
    }

    /// Returns whether new names share the existing sessions. Half of the pool is for waits.
    pub(crate) fn shares(&self) -> bool {
        let most = usize::try_from(self.options.pool_size / 2).unwrap_or(usize::MAX);
        self.sessions.count() >= most.max(1)
    }

    /// Makes attempts of one ttl on a connection without names, which becomes a session.
    pub(crate) fn try_on_slot(
        &self,
        slot: PooledConn<C>,
        requests: &Requests<C::Name>,
        idle: Duration,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Made<C>, Failure> {
        let session = self.open_session(slot, requests, idle, until, cancel)?;
        let asked_at = self.clock.now();
        let ask =
            |connection: &mut _| cancellable(connection, cancel, |it| session.ask(it, requests));
        let replies = self
            .sessions
            .call_first(&session, requests, || self.left(until), ask)?;
        Ok(Made {
            session,
            attempted: replies.attempted,
            asked_at,
        })
    }

    /// Makes a session from a slot's connection, for the names that are requested next. Connects if the slot has
    /// no connection.
    pub(crate) fn open_session(
        &self,
        mut slot: PooledConn<C>,
        requests: &Requests<C::Name>,
        idle: Duration,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Arc<Session<C>>, Failure> {
        let opened = self.run(&mut slot, until, cancel, |connection| {
            match connection.check_start() {
                // The connection is still good.
                Err(refused @ Failure::Refused(_)) => return Ok(Err(refused)),
                checked => checked?,
            }
            cancellable(connection, cancel, |it| it.set_idle(idle))?;
            Ok(Ok(connection.session()))
        });
        let id = opened??;
        let names = requests.attempts.iter().cloned();
        let session = Session::new(slot, id, idle, names, &self.sessions.verifiers);
        Ok(Arc::new(session))
    }

    /// Records what the session was granted.
    pub(crate) fn grant(
        &self,
        made: &Made<C>,
        request: &AcquireRequest<'_>,
        name: C::Name,
        epoch: u64,
    ) -> Grant<SessionLease<C>> {
        let since = self.clock.now();
        let until = since + request.ttl();
        let granted = Some((epoch, since));
        self.sessions
            .set(&made.session, &name, Entry { granted, until });
        // The session takes more names from now on.
        self.pool.recheck();
        let session = Arc::clone(&made.session);
        let lease = SessionLease {
            session,
            name,
            epoch,
        };
        Grant {
            lease,
            epoch,
            asked_at: made.asked_at,
            slot: 0,
        }
    }

    /// Sends a release: see [`Backend::send_release`](lockkeeper_core::Backend::send_release).
    pub fn send_release(&self, lease: &SessionLease<C>) -> ReleaseDispatch {
        let SessionLease {
            session,
            name,
            epoch,
        } = lease;
        match session.send_release(name, *epoch, self.clock.now()) {
            false => ReleaseDispatch::NotSent,
            true => ReleaseDispatch::Sent(SentRelease::new(Sent {
                session: Arc::clone(session),
                name: name.clone(),
                is_taken: false,
            })),
        }
    }

    /// Ends a session if it holds a name, and waits until the name is free. Only the session itself can free a single name
    /// of its own, so all its names are freed. Returns false if it does not hold the name.
    ///
    /// # Errors
    /// The server did not do so until `deadline`.
    pub fn force_release(
        &self,
        name: &C::Name,
        session: C::Id,
        deadline: HostInstant,
    ) -> Result<bool, Error> {
        let ended = self.run_apart(deadline, |connection| connection.end_holder(name, session));
        let holds = || {
            let holders = self.run_apart(deadline, |connection| connection.holders(name))?;
            Ok(holders.iter().any(|it| C::is_session(session, *it)))
        };
        if let Err(error) = ended {
            return if holds()? { Err(error) } else { Ok(false) };
        }
        // The server ends the session in the background, and sends no notification.
        while holds()? {
            if self.clock.now() >= deadline {
                let text = "the server is ending the session that holds the lock, and has not finished; ask again who holds the name";
                return Err(unknown(text).into_error());
            }
            thread::sleep(CHECK_EVERY);
        }
        Ok(true)
    }

    /// Runs `work` on a connection of the pool that holds no name, until `deadline`.
    ///
    /// # Errors
    /// No connection is free or can be opened, or the error of `work`.
    pub fn run_apart<T>(
        &self,
        deadline: HostInstant,
        work: impl FnMut(&mut C) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let slot = self.pool.checkout(self.left(deadline), None);
        slot.ok_or_else(|| self.exhausted())
            .and_then(|mut slot| self.run(&mut slot, deadline, None, work))
            .map_err(Failure::into_error)
    }

    /// Returns the failure of a caller that found no slot in the pool.
    pub(crate) fn exhausted(&self) -> Failure {
        let hold = self.sessions.count();
        let wait = self.pool.waiting();
        self.pool.exhausted(
            &format!(": {hold} hold locks and {wait} wait for one"),
            " (and the server's `max_connections`), or wait for fewer names at once",
        )
    }

    /// Runs `work` on the connection of a slot, which is opened if there is none: see [`PooledConn::run`].
    fn run<T>(
        &self,
        slot: &mut PooledConn<C>,
        until: HostInstant,
        cancel: Option<&CancelToken>,
        mut work: impl FnMut(&mut C) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let longest = self.options.response_timeout;
        let connect = Arc::clone(&self.connect);
        let connect = move |limit| connect(limit);
        slot.run(&*self.clock, until, cancel, connect, |connection, limit| {
            connection.link_mut().set_limit(limit.min(longest));
            work(connection)
        })
    }

    /// Returns the time that a reply may take until then.
    pub(crate) fn left(&self, until: HostInstant) -> Duration {
        let left = until.saturating_since(self.clock.now());
        left.min(self.options.response_timeout)
    }
}

/// Runs `work` on a connection that holds no name. A cancel closes the connection, and so ends the work.
pub(crate) fn cancellable<C: SessionConnection, T>(
    connection: &mut C,
    cancel: Option<&CancelToken>,
    work: impl FnOnce(&mut C) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // After the work, a cancel in another thread must not close the connection, since other names may use it.
    let close = connection.canceller();
    let result = until_cancelled(cancel, Some(close), || work(connection));
    // The reply may have granted a name just before the cancel.
    connection.link_mut().is_in_doubt |= matches!(result, Err(Failure::Unanswered(_)));
    result
}

/// A release that was sent and not waited for: the session owes the reply, which the next batch reads. If this is dropped
/// before a batch takes it, the reply is lost.
pub(crate) struct Sent<C: SessionConnection> {
    session: Arc<Session<C>>,
    name: C::Name,
    is_taken: bool,
}

impl<C: SessionConnection> Sent<C> {
    /// Takes what the engine gives back. The caller reads the reply.
    pub(crate) fn take(sent: Option<SentRelease>) -> bool {
        let sent = sent.and_then(SentRelease::into_inner::<Self>);
        sent.is_some_and(|mut sent| {
            sent.is_taken = true;
            true
        })
    }
}

impl<C: SessionConnection> Drop for Sent<C> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.session.lose_reply(&self.name);
        }
    }
}

/// Defines the verbs of a [`Backend`](lockkeeper_core::Backend) that are the same in all stores with sessions, for a provider
/// that has its [`SessionStore`] in the field `self.0.locks`.
#[macro_export]
macro_rules! session_verbs {
    () => {
        fn acquire(
            &self,
            request: &::lockkeeper_core::AcquireRequest<'_>,
        ) -> Result<Option<::lockkeeper_core::Grant<Self::Lease>>, ::lockkeeper_core::Error> {
            self.0.locks.acquire(request)
        }

        fn send_release(&self, lease: &mut Self::Lease) -> ::lockkeeper_core::ReleaseDispatch {
            self.0.locks.send_release(lease)
        }

        fn batch(&self, operations: &mut [::lockkeeper_core::Operation<'_, Self::Lease>]) {
            self.0.locks.batch(operations);
        }

        fn watch_leases(&self, verifier: ::lockkeeper_core::LeaseVerifier) {
            self.0.locks.watch_leases(verifier);
        }
    };
}
