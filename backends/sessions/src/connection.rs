//! What a backend implements: its names, and a connection whose session holds them.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use lockkeeper_core::Mode;
use lockkeeper_remote::{Connection, Failure};

use crate::link::SessionLink;
use crate::requests::{Attempted, Replies, Requests};

/// A name on the server, which a session requests or holds.
pub trait SessionName: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    /// Returns the name that a request of this mode names.
    fn requested(namespace: &str, name: &str, mode: Mode) -> Self;
}

/// A connection whose session holds names. Dropping it ends the session, and the server frees all names that
/// it holds.
pub trait SessionConnection: Connection + Send + Sized + 'static {
    /// The names on the server.
    type Name: SessionName;
    /// The identity of a session, which stays unique when the server is started again.
    type Id: Copy + Debug + Eq + Send + Sync + 'static;

    /// The backend's name, which the names of its threads begin with.
    const BACKEND: &'static str;
    /// The name of the thread that watches connections.
    const WATCH: &'static str;

    /// Returns how long the session of a lease of `ttl` may be idle: the ttl in the server's unit, rounded up.
    /// Leases share a session if this is the same for both.
    fn idle(ttl: Duration) -> Duration;

    /// Returns the identity of the session.
    fn session(&self) -> Self::Id;

    /// Returns whether a session that a connection knows is the one that the server names.
    fn is_session(known: Self::Id, seen: Self::Id) -> bool {
        known == seen
    }

    /// Returns what the connection has in common with those to other servers. It is
    /// [watched](SessionLink::watch) before the first request.
    fn link(&self) -> &SessionLink<Self::Id>;

    /// Returns the same, to be changed.
    fn link_mut(&mut self) -> &mut SessionLink<Self::Id>;

    /// Refuses to request a name while the server, which was just started, grants none.
    ///
    /// # Errors
    /// [`Failure::Refused`], which says for how long still. [`Failure::Closed`] if the connection leads to a wrong
    /// server, such as a replica.
    fn check_start(&self) -> Result<(), Failure>;

    /// Returns what ends the session from another thread, also while a request waits in the server.
    fn canceller(&self) -> impl Fn() + Send + Sync + 'static;

    /// Makes the server end the session after it was idle for a time. Costs nothing if that is set already.
    ///
    /// # Errors
    /// The server was not told.
    fn set_idle(&mut self, idle: Duration) -> Result<(), Failure>;

    /// Sends requests together, and returns the replies in their order. A failure concerns all of them.
    ///
    /// # Errors
    /// The class says what is left of the requests.
    fn ask(&mut self, requests: &Requests<Self::Name>) -> Result<Replies, Failure>;

    /// Writes the release of a name and does not wait for the reply. [`ask`](Self::ask) reads the reply when its requests
    /// have the name as [`sent`](Requests::sent); until then, other requests keep it. Returns false if nothing was sent.
    ///
    /// # Errors
    /// A part of it may have been sent.
    fn send_release(&mut self, name: &Self::Name) -> Result<bool, Failure> {
        let _ = name;
        Ok(false)
    }

    /// Waits in the server for a name for `wait`, first come, first served; or for the longest time that the server can
    /// count. The reply, and that of a request after it, may take `grace` longer.
    ///
    /// # Errors
    /// No reply came, or the wait was disturbed.
    fn wait(&mut self, name: &Self::Name, wait: Duration, grace: Duration) -> Attempted;

    /// Returns the sessions that hold a name, or for which the server keeps it.
    ///
    /// # Errors
    /// The server did not say.
    fn holders(&mut self, name: &Self::Name) -> Result<Vec<Self::Id>, Failure>;

    /// Ends a session if it holds the name.
    ///
    /// # Errors
    /// [`Failure::Refused`] if it does not hold the name.
    fn end_holder(&mut self, name: &Self::Name, session: Self::Id) -> Result<(), Failure>;
}
