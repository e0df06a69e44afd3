//! A pool of connections in which every step has the caller's deadline.
//!
//! The pool hands out slots, and the caller opens the connection of an empty slot on its own thread.
//! That is why this is not r2d2, which opens connections on a few threads of its own: one address that
//! does not answer holds up the connections of all other callers there, renewals included; a connect that
//! fails is retried with pauses of up to half of the pool's time-out, and the caller, who waits
//! meanwhile, gets its text alone at the end, not its kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error};
use parking_lot::{Condvar, Mutex};

use crate::failure::Failure;

/// A connection that a [`Pool`] keeps.
pub trait Connection {
    /// Returns whether an idle connection can take a request: see [`is_quiet`](crate::is_quiet).
    fn is_quiet(&self) -> bool;

    /// Returns whether a new connection may lead to a better server, such as the new primary.
    fn is_misdirected(&self) -> bool {
        false
    }
}

struct State<C> {
    /// The connections of free slots, the last one used last.
    idle: Vec<C>,
    free_slots: u32,
}

struct Shared<C> {
    state: Mutex<State<C>>,
    slot_freed: Condvar,
}

/// A bounded set of connections.
pub struct Pool<C> {
    shared: Arc<Shared<C>>,
}

impl<C> Pool<C> {
    /// A pool of at most `size` connections, none of them open yet.
    pub fn new(size: u32) -> Self {
        let state = State {
            idle: Vec::new(),
            free_slots: size,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                slot_freed: Condvar::new(),
            }),
        }
    }

    /// Returns a slot if one is free.
    pub fn try_checkout(&self) -> Option<PooledConn<C>> {
        self.take(&mut self.shared.state.lock())
    }

    /// Returns a slot as soon as one is free, within `limit`.
    pub fn checkout(&self, limit: Duration) -> Option<PooledConn<C>> {
        let mut state = self.shared.state.lock();
        if let Some(slot) = self.take(&mut state) {
            return Some(slot);
        }
        // An `Instant` ends before a `Duration` does.
        let deadline = Instant::now().checked_add(limit);
        loop {
            let timed_out = deadline.is_some_and(|deadline| {
                let waited = self.shared.slot_freed.wait_until(&mut state, deadline);
                waited.timed_out()
            });
            if deadline.is_none() {
                self.shared.slot_freed.wait(&mut state);
            }
            let slot = self.take(&mut state);
            if slot.is_some() || timed_out {
                return slot;
            }
        }
    }

    fn take(&self, state: &mut State<C>) -> Option<PooledConn<C>> {
        state.free_slots = state.free_slots.checked_sub(1)?;
        Some(PooledConn {
            connection: state.idle.pop(),
            shared: Arc::clone(&self.shared),
        })
    }
}

/// A slot of a [`Pool`], with its connection if one is open. Dropping it returns both to the pool.
pub struct PooledConn<C> {
    /// The connection. A caller that takes it out and drops it closes it.
    pub connection: Option<C>,
    shared: Arc<Shared<C>>,
}

impl<C> Drop for PooledConn<C> {
    fn drop(&mut self) {
        let connection = self.connection.take();
        let mut state = self.shared.state.lock();
        state.idle.extend(connection);
        state.free_slots += 1;
        self.shared.slot_freed.notify_one();
    }
}

impl<C: Connection> PooledConn<C> {
    /// Runs `work` on the connection within `left`; `work` gets the time that it has. `connect` opens
    /// a connection where none is open.
    ///
    /// A connection on which something failed is closed. A connection that was in use before is
    /// replaced at once if it turns out to be closed, or to lead to the wrong server. It is checked
    /// before use: a socket takes a request also after the server has closed the connection, and then
    /// it is unknown whether the server carried it out. The check is one system call of some 0.4 µs.
    ///
    /// # Errors
    /// The failure of `connect`, which is [`Failure::NotSent`], or of `work`.
    pub fn run<T>(
        &mut self,
        clock: &dyn Clock,
        left: Duration,
        connect: impl Fn(Duration) -> Result<C, Error>,
        mut work: impl FnMut(&mut C, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = clock.now() + left;
        let mut limit = left;
        loop {
            let idle = self.connection.take().filter(Connection::is_quiet);
            let was_open = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => {
                    let opened = connect(limit).map_err(Failure::NotSent)?;
                    limit = deadline.saturating_since(clock.now());
                    opened
                }
            };
            let result = work(&mut connection, limit);
            let is_misdirected = connection.is_misdirected();
            let is_gone = matches!(result, Err(Failure::NotSent(_) | Failure::Closed(_)));
            if was_open && (is_misdirected || is_gone) {
                drop(connection);
                limit = deadline.saturating_since(clock.now());
                continue;
            }
            if result.is_ok() && !is_misdirected {
                self.connection = Some(connection);
            }
            return result;
        }
    }
}
