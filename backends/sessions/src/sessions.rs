//! The sessions of a provider, the calls on them, and the sweeper that ends what no guard renews.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SendError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant, LeaseVerifiers, Tick, Timer};
use parking_lot::{Mutex, MutexGuard};

use lockkeeper_remote::{Failure, RemoteOptions, Server, SocketWatch};

use crate::abandoned::AbandonedSessions;
use crate::connection::SessionConnection;
use crate::detached::{DetachedCalls, Pending};
use crate::link::{LinkShared, SessionEvent};
use crate::requests::{Attempted, Replies, Requests};
use crate::session::Session;
use crate::state::Entry;

/// The time until the next attempt to end a lease.
const SWEEP_RETRY: Duration = Duration::from_millis(100);

/// The sessions of a provider that hold names.
pub struct Sessions<C: SessionConnection> {
    pub(crate) clock: Arc<dyn Clock>,
    list: Mutex<Vec<Arc<Session<C>>>>,
    /// Ends leases that no guard renews, while other names keep their session alive. It never waits for
    /// the server.
    sweeper: Timer,
    /// Calls on sessions that hold names of several callers.
    pub(crate) calls: DetachedCalls,
    /// The sessions that were closed before a reply came.
    abandoned: AbandonedSessions<C::Id>,
    /// The keepers, which verify their leases when a session has ended.
    pub(crate) verifiers: Arc<LeaseVerifiers>,
}

impl<C: SessionConnection> Sessions<C> {
    /// No sessions yet, and a thread that ends leases.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(clock: Arc<dyn Clock>) -> Result<Arc<Self>, Error> {
        let sessions = Arc::new(Self {
            sweeper: Timer::new(Arc::clone(&clock)),
            clock,
            list: Mutex::default(),
            calls: DetachedCalls::new(C::BACKEND),
            abandoned: AbandonedSessions::default(),
            verifiers: Arc::default(),
        });
        let weak = Arc::downgrade(&sessions);
        let sweep = move |tick: Tick| Some(weak.upgrade()?.sweep(tick.now));
        let name = format!("lockkeeper-{}-sweep", C::BACKEND);
        sessions.sweeper.start(&name, sweep)?;
        Ok(sessions)
    }

    /// Returns the sessions that have their connection. One that is over has it until the end of the call that is under way,
    /// and the server may hold its names so long.
    fn open(&self) -> MutexGuard<'_, Vec<Arc<Session<C>>>> {
        let mut list = self.list.lock();
        list.retain(|session| !session.state().is_retired);
        list
    }

    /// Returns the number of sessions that are not over.
    pub(crate) fn count(&self) -> usize {
        let is_live = |session: &&Arc<Session<C>>| !session.state().is_over();
        self.open().iter().filter(is_live).count()
    }

    fn add(&self, session: &Arc<Session<C>>) {
        self.list.lock().push(Arc::clone(session));
        // Its connection may have ended before the session was in the list.
        if session.is_cut() {
            session.end();
        }
    }

    /// Returns what the connections share. `protocol` is the server's, as errors name it, and `is_supplied` says that the
    /// application makes or lends the connections.
    pub fn link(
        self: &Arc<Self>,
        options: &RemoteOptions,
        protocol: &'static str,
        is_supplied: bool,
    ) -> Arc<LinkShared<C::Id>> {
        let sessions = Arc::downgrade(self);
        let listener = move |session, event| {
            if let Some(sessions) = sessions.upgrade() {
                sessions.notice(session, event);
            }
        };
        Arc::new(LinkShared {
            server: Server::new(protocol, &options.endpoint),
            counts: Arc::default(),
            clock: Arc::clone(&self.clock),
            restart_grace: options.restart_grace,
            watch: SocketWatch::new(C::WATCH),
            listener: Arc::new(listener),
            round_trip: AtomicU64::new(0),
            first_server: is_supplied.then(OnceLock::new),
        })
    }

    /// Records what happened to a session. Connections that hold no name are none of the sessions.
    fn notice(&self, id: C::Id, event: SessionEvent) {
        if let SessionEvent::Abandoned(idle) = event {
            return self.abandoned.add(id, idle);
        }
        let open = self.open();
        let ended: Vec<_> = open.iter().filter(|it| it.id == id).cloned().collect();
        drop(open);
        ended.iter().for_each(|session| session.end());
    }

    /// Enters `name` in a session of the same ttl, and returns the session: the one with the fewest names
    /// of those without a call under way, or if `or_busy`, of the others.
    pub(crate) fn enter(
        &self,
        name: &C::Name,
        idle: Duration,
        or_busy: bool,
    ) -> Option<Arc<Session<C>>> {
        let list = self.list.lock();
        let fit = list.iter().filter_map(|session| {
            let is_busy = session.is_busy();
            let fits = session.idle == idle && (or_busy || !is_busy);
            fits.then(|| (is_busy, session.state().names.len(), session))
        });
        let mut fit: Vec<_> = fit.collect();
        fit.sort_by_key(|(is_busy, names, _)| (*is_busy, *names));
        let mut fit = fit.into_iter().map(|(_, _, session)| session);
        fit.find(|session| session.state().enter(name))
            .map(Arc::clone)
    }

    /// Changes the entry of a name, which the sweeper releases when its time is over.
    pub(crate) fn set(&self, session: &Session<C>, name: &C::Name, entry: Entry) {
        let has_ended = session.state().set(name, entry);
        self.sweeper.note(entry.until);
        // The session's end had no lease to verify yet.
        if has_ended && entry.granted.is_some() {
            self.verifiers.verify_all();
        }
    }

    /// Leaves the release of a name that no guard holds to the sweeper.
    fn leave_over(&self, session: &Session<C>, name: &C::Name) {
        let (granted, until) = (None, self.clock.now() + SWEEP_RETRY);
        self.set(session, name, Entry { granted, until });
    }

    /// Returns the sessions on which the server may hold the name while no guard of this process
    /// does, except one.
    pub(crate) fn unclaimed(&self, name: &C::Name, except: C::Id) -> Vec<C::Id> {
        let now = self.clock.now();
        let open = self.open();
        let unclaimed = open
            .iter()
            .filter(|session| session.id != except && session.state().has_unclaimed(name, now));
        unclaimed.map(|session| session.id).collect()
    }

    /// Returns for each attempt the sessions that [`unclaimed`](Self::unclaimed) returns.
    fn all_unclaimed(&self, session: &Session<C>, requests: &Requests<C::Name>) -> Vec<Vec<C::Id>> {
        let names = requests.attempts.iter();
        names.map(|name| self.unclaimed(name, session.id)).collect()
    }

    /// Carries out requests about names that were entered, on the caller's thread. The session is waited
    /// for within `limit`; the replies may take as long as a lease lasts, since other names depend on them.
    fn call(
        &self,
        session: &Session<C>,
        requests: &Requests<C::Name>,
        limit: Duration,
    ) -> Result<Replies, Failure> {
        let unclaimed = self.all_unclaimed(session, requests);
        let longest = session.longest_call();
        let result = session.run(limit, |connection| {
            connection.link_mut().set_limit(longest);
            session.ask(connection, requests)
        });
        self.finish(session, requests, result, unclaimed, || longest)
    }

    /// Carries out requests within the time that `left` returns, if no other name depends on the session: see
    /// [`Session::run_alone`].
    pub(crate) fn call_alone(
        &self,
        session: &Session<C>,
        requests: &Requests<C::Name>,
        left: impl Fn() -> Duration,
    ) -> Option<Result<Replies, Failure>> {
        let unclaimed = self.all_unclaimed(session, requests);
        let ask = |connection: &mut _| session.ask(connection, requests);
        let result = session.run_alone(requests.names(), left(), ask)?;
        Some(self.finish(session, requests, result, unclaimed, left))
    }

    /// Carries out the first attempts of a new session by `ask`, and adds the session. `left` returns the time that is left.
    pub(crate) fn call_first(
        &self,
        session: &Arc<Session<C>>,
        requests: &Requests<C::Name>,
        left: impl Fn() -> Duration,
        ask: impl FnOnce(&mut C) -> Result<Replies, Failure>,
    ) -> Result<Replies, Failure> {
        let unclaimed = self.all_unclaimed(session, requests);
        let result = session.run(left(), ask);
        // Not before the reply: of two sessions that try one name, each would take the other for its holder.
        self.add(session);
        self.finish(session, requests, result, unclaimed, left)
    }

    /// Confirms which names are busy, within the time that `left` returns, and enters in the session what the replies say.
    /// `unclaimed` is from before the call.
    fn finish(
        &self,
        session: &Session<C>,
        requests: &Requests<C::Name>,
        mut result: Result<Replies, Failure>,
        unclaimed: Vec<Vec<C::Id>>,
        left: impl Fn() -> Duration,
    ) -> Result<Replies, Failure> {
        let attempted = result.as_mut().map(|replies| &mut replies.attempted);
        let attempted = attempted.into_iter().flatten();
        let attempts = requests.attempts.iter().zip(attempted);
        for ((name, attempted), unclaimed) in attempts.zip(unclaimed) {
            if matches!(attempted, Ok(None)) {
                let confirm = |connection: &mut _| self.confirm_busy(connection, name, unclaimed);
                *attempted = session.run(left(), confirm).flatten();
            }
        }
        self.apply(session, requests, &result);
        result
    }

    /// Finds out whether another process or guard holds a name that the server did not grant to this
    /// connection. Costs a statement only while a request of this store is not answered. A failure within says that
    /// the holder may be such a request; the connection is as good as before.
    ///
    /// `unclaimed` is the answer of [`unclaimed`](Self::unclaimed) from before the attempt. Such a request may have held the
    /// name then, and have given it back before the reply was here.
    fn confirm_busy(
        &self,
        connection: &mut C,
        name: &C::Name,
        unclaimed: Vec<C::Id>,
    ) -> Result<Attempted, Failure> {
        let abandoned = self.abandoned.current();
        let mut own = unclaimed;
        own.extend(self.unclaimed(name, connection.session()));
        if own.is_empty() && abandoned.is_empty() {
            return Ok(Ok(None));
        }
        let holders = connection.holders(name)?;
        let mut is_ours = holders.is_empty();
        for holder in holders {
            let holds = |session: &C::Id| C::is_session(*session, holder);
            is_ours |= own.iter().any(holds);
            if abandoned.iter().any(holds) {
                is_ours = true;
                match connection.end_holder(name, holder) {
                    // Refused: the session has ended by itself.
                    Ok(()) | Err(Failure::Refused(_)) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        if !is_ours {
            return Ok(Ok(None));
        }
        // Without a holder: the name is free by now, so the holder may have been such a request.
        // The server has replied, and granted nothing to this request.
        Ok(Err(Failure::Unanswered(Error::name_unavailable(
            "an earlier request for the lock was not answered in time, and the server may have granted the lock to that request; it is being given back, so try again",
        ))))
    }

    /// Starts [`call`](Self::call) on another thread. It continues when the caller has stopped waiting, and
    /// then gives back what it was granted. Attempts alone wait for the session within `limit`.
    pub(crate) fn start(
        self: &Arc<Self>,
        session: &Arc<Session<C>>,
        requests: Requests<C::Name>,
        limit: Duration,
    ) -> Pending<Replies> {
        let requests = Arc::new(requests);
        let limit = match requests.attempts.len() == requests.count() {
            true => limit,
            false => session.longest_call(),
        };
        let (sessions, theirs, all) =
            (Arc::clone(self), Arc::clone(session), Arc::clone(&requests));
        let started = self.calls.start(move |reply| {
            let result = sessions.call(&theirs, &all, limit);
            if let Err(SendError(Ok(late))) = reply.send(result) {
                let granted = all.granted(&late).cloned().collect();
                sessions.give_back(&theirs, granted);
            }
        });
        match started {
            Ok(reply) => Pending::Started(reply),
            Err(failure) => {
                let failed = Err(failure);
                self.apply(session, &requests, &failed);
                Pending::Done(failed)
            }
        }
    }

    /// Releases names for which no caller waits any more.
    fn give_back(&self, session: &Session<C>, names: Vec<C::Name>) {
        if !names.is_empty() {
            let _ = self.call(session, &Requests::releases(names), session.longest_call());
        }
    }

    /// Forgets names that were released or not granted, or leaves them to the sweeper where the server did
    /// not get the request or refused it.
    fn apply(
        &self,
        session: &Session<C>,
        requests: &Requests<C::Name>,
        result: &Result<Replies, Failure>,
    ) {
        let (mut gone, mut left_over) = (Vec::new(), Vec::new());
        match result {
            Ok(replies) => {
                // It may have been tried behind its release.
                let is_tried = |name: &&C::Name| requests.attempts.contains(name);
                let sent = requests.sent.iter().filter(|it| !is_tried(it));
                match replies.sent {
                    Some(Err(_)) => left_over.extend(sent),
                    _ => gone.extend(sent),
                }
                gone.extend(&requests.releases);
                for (name, attempted) in requests.attempts.iter().zip(&replies.attempted) {
                    match attempted {
                        Ok(Some(_)) => {}
                        // The server may have granted the name all the same.
                        Err(Failure::Refused(_)) => left_over.push(name),
                        Ok(None) | Err(_) => gone.push(name),
                    }
                }
            }
            Err(Failure::NotSent(_)) => {
                session.state().leave_unanswered(requests.sent.iter());
                left_over.extend(&requests.releases);
                gone.extend(&requests.attempts);
            }
            Err(Failure::Refused(_)) => {
                let mut state = session.state();
                state.is_spent = true;
                // The connection closes with its last name, and then the server frees that.
                match state.names.len() > 1 {
                    true => left_over.extend(requests.changes()),
                    false => gone.extend(requests.changes()),
                }
            }
            Err(Failure::Closed(_)) => gone.extend(requests.changes()),
            // The session is in doubt, and is closed when no other lease on it lasts.
            Err(Failure::Unanswered(_)) => session.state().leave_unanswered(requests.changes()),
        }
        for name in left_over {
            self.leave_over(session, name);
        }
        session.leave(gone);
    }

    /// Ends expired leases, and returns the time of the next sweep.
    fn sweep(self: &Arc<Self>, now: HostInstant) -> HostInstant {
        let sessions = self.open().clone();
        let mut next = HostInstant::NEVER;
        for session in sessions {
            let (expired, then) = session.state().take_expired(now);
            session.retire();
            next = next.min(then);
            if !expired.is_empty() {
                let _ = self.start(&session, Requests::releases(expired), Duration::ZERO);
            }
        }
        next
    }
}
