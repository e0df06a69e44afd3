//! A pool of connections in which every step has the caller's deadline.
//!
//! The pool hands out slots, and the caller opens the connection of an empty slot on its own thread.
//! That is why this is not r2d2, which opens connections on a few threads of its own: one address that
//! does not answer holds up the connections of all other callers there, renewals included; a connect that
//! fails is retried with pauses of up to half of the pool's time-out, and the caller, who waits
//! meanwhile, gets its text alone at the end, not its kind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant};
use parking_lot::{Condvar, Mutex};

use crate::failure::Failure;

/// A connection that a [`Pool`] keeps.
pub trait Connection {
    /// Returns whether an idle connection can take a request: see [`is_quiet`](crate::is_quiet).
    fn is_quiet(&self) -> bool;
}

struct Shared<C> {
    /// The free slots. Those with an open connection are at the end, the last one used last.
    free: Mutex<VecDeque<Option<C>>>,
    slot_freed: Condvar,
}

/// A bounded set of connections.
pub struct Pool<C>(Arc<Shared<C>>);

impl<C> Pool<C> {
    /// A pool of at most `size` connections, none of them open yet.
    pub fn new(size: u32) -> Self {
        Self(Arc::new(Shared {
            free: Mutex::new((0..size).map(|_| None).collect()),
            slot_freed: Condvar::new(),
        }))
    }

    /// Returns a slot if one is free.
    pub fn try_checkout(&self) -> Option<PooledConn<C>> {
        self.checkout(Duration::ZERO)
    }

    /// Returns a slot as soon as one is free, within `limit`.
    pub fn checkout(&self, limit: Duration) -> Option<PooledConn<C>> {
        let mut free = self.0.free.lock();
        let no_slot = |free: &mut VecDeque<_>| free.is_empty();
        self.0.slot_freed.wait_while_for(&mut free, no_slot, limit);
        Some(PooledConn {
            connection: free.pop_back()?,
            pool: Arc::clone(&self.0),
        })
    }
}

/// A slot of a [`Pool`], with its connection if one is open. Dropping it returns both to the pool.
pub struct PooledConn<C> {
    /// The connection. A caller that takes it out and drops it closes it.
    pub connection: Option<C>,
    pool: Arc<Shared<C>>,
}

impl<C> Drop for PooledConn<C> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        match self.connection.take() {
            Some(connection) => free.push_back(Some(connection)),
            None => free.push_front(None),
        }
        self.pool.slot_freed.notify_one();
    }
}

impl<C: Connection> PooledConn<C> {
    /// Runs `work` on the connection until `deadline`; `work` gets the time that it has. `connect` opens
    /// a connection where none is open.
    ///
    /// A connection on which something failed is closed, and one that was in use before is replaced at
    /// once after [`Failure::Closed`] or [`Failure::NotSent`]. It is checked before use: a socket takes
    /// a request also after the server has closed the connection, and then it is unknown whether the
    /// server carried it out. The check is one system call of some 0.4 µs.
    ///
    /// # Errors
    /// The failure of `connect`, which is [`Failure::NotSent`], or of `work`.
    pub fn run<T>(
        &mut self,
        clock: &dyn Clock,
        deadline: HostInstant,
        connect: impl Fn(Duration) -> Result<C, Error>,
        mut work: impl FnMut(&mut C, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let left = || deadline.saturating_since(clock.now());
        loop {
            let idle = self.connection.take().filter(Connection::is_quiet);
            let was_open = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => connect(left()).map_err(Failure::NotSent)?,
            };
            let result = work(&mut connection, left());
            match result {
                Err(Failure::NotSent(_) | Failure::Closed(_)) if was_open => {}
                Err(_) => return result,
                Ok(_) => {
                    self.connection = Some(connection);
                    return result;
                }
            }
        }
    }
}
