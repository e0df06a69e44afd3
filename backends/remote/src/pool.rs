//! A pool of connections in which every step has the caller's deadline.
//!
//! The pool hands out slots, and the caller opens the connection of an empty slot on its own thread. That is why this
//! is not r2d2, which opens connections on a few threads of its own. There, one address that does not answer holds up
//! the connections of all other callers, renewals included. A connect that fails is retried with pauses of up to half
//! of the pool's time-out. The caller waits meanwhile, and gets the text of the error without its kind.
//!
//! Of connections that the application lends, one idle one stays: the checks of a new one are three round trips.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{CancelRegistration, CancelToken, Clock, Error, ErrorKind, HostInstant};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cancel::connect_until_cancelled;
use crate::failure::{Failure, no_time};
use crate::options::RemoteOptions;

/// A connection that a [`Pool`] keeps.
pub trait Connection {
    /// Returns whether an idle connection can take a request: see [`is_quiet`](crate::is_quiet). A connection that has to
    /// ask the server for that has no more time than `limit`.
    fn is_quiet(&mut self, limit: Duration) -> bool;

    /// Gives the connection back to the application that lent it, in the state in which it was lent, or closes it.
    fn give_back(self)
    where
        Self: Sized,
    {
    }
}

struct Shared<C> {
    size: u32,
    state: Mutex<State<C>>,
    slot_freed: Condvar,
    /// Another slot is free beside the one that was freed.
    spare_freed: Condvar,
    /// A caller of [`Pool::checkout_to_wait`] may find a slot.
    wait_possible: Condvar,
    /// The largest number of slots that may wait: all but one, in a pool of several.
    most_waiting: u32,
    /// The number of slots that [`Pool::checkout_spare`] leaves: one, in a pool of several.
    kept: usize,
    /// The largest number of idle connections that stay open.
    most_idle: usize,
    /// Takes the other ones, and at last all.
    give_back: fn(C),
}

impl<C> Drop for Shared<C> {
    fn drop(&mut self) {
        let free = self.state.get_mut().free.drain(..);
        free.flatten().for_each(self.give_back);
    }
}

struct State<C> {
    /// The free slots. Those with an open connection are at the end, the last one used last.
    free: VecDeque<Option<C>>,
    /// The number of slots on which a caller waits for something else than a reply.
    waiting: u32,
    /// The number of calls of [`Pool::recheck`].
    rechecks: u64,
}

/// What [`Pool::checkout_or`] found first.
pub enum Found<C, T> {
    /// A free slot.
    Slot(PooledConn<C>),
    /// What serves as well.
    Other(T),
}

/// A bounded set of connections. Clones are the same pool.
pub struct Pool<C>(Arc<Shared<C>>);

impl<C> Clone for Pool<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> Pool<C> {
    /// A pool of at most `size` connections, none of them open yet.
    pub fn new(size: u32) -> Self {
        Self::giving_back(size, usize::MAX, drop)
    }

    /// The pool of a store with these options. If an application lends the connections, one stays while it is idle, and
    /// [`Connection::give_back`] gets each other one.
    pub fn of(options: &RemoteOptions) -> Self
    where
        C: Connection + Send + 'static,
    {
        match options.is_lent {
            true => Self::giving_back(options.pool_size, 1, give_back_aside),
            false => Self::new(options.pool_size),
        }
    }

    fn giving_back(size: u32, most_idle: usize, give_back: fn(C)) -> Self {
        Self(Arc::new(Shared {
            size,
            state: Mutex::new(State {
                free: (0..size).map(|_| None).collect(),
                waiting: 0,
                rechecks: 0,
            }),
            slot_freed: Condvar::new(),
            spare_freed: Condvar::new(),
            wait_possible: Condvar::new(),
            most_waiting: size.saturating_sub(1).max(1),
            kept: usize::from(size > 1),
            most_idle,
            give_back,
        }))
    }

    /// Returns the failure of a caller that found no slot. `users` says what uses the connections, and `advice` what to do.
    pub fn exhausted(&self, users: &str, advice: &str) -> Failure {
        let text = format!(
            "all {} connections to the server are in use{users}; raise `pool_size`{advice}",
            self.0.size
        );
        Failure::NotSent(Error::new(ErrorKind::PoolExhausted, text))
    }

    /// Returns a slot if one is free.
    pub fn try_checkout(&self) -> Option<PooledConn<C>> {
        self.take(&mut self.0.state.lock())
    }

    /// Returns the number of slots on which callers wait.
    pub fn waiting(&self) -> u32 {
        self.0.state.lock().waiting
    }

    /// Closes the idle connections: after one of them got no reply, those of its age are no better.
    pub fn close_idle(&self) {
        let mut state = self.0.state.lock();
        let idle: Vec<_> = state.free.iter_mut().filter_map(Option::take).collect();
        drop(state);
        idle.into_iter().for_each(self.0.give_back);
    }

    /// Makes all callers of [`checkout_or`](Self::checkout_or) call `other` again.
    pub fn recheck(&self) {
        let mut state = self.0.state.lock();
        state.rechecks = state.rechecks.wrapping_add(1);
        self.0.slot_freed.notify_all();
    }

    fn take(&self, state: &mut State<C>) -> Option<PooledConn<C>> {
        Some(PooledConn {
            connection: state.free.pop_back()?,
            pool: Some(Arc::clone(&self.0)),
        })
    }
}

impl<C: Send + 'static> Pool<C> {
    /// Returns a slot as soon as one is free, within `limit` and before a cancel.
    pub fn checkout(&self, limit: Duration, cancel: Option<&CancelToken>) -> Option<PooledConn<C>> {
        let is_free = |state: &State<_>| !state.free.is_empty();
        let mut state = self.wait_until(&self.0.slot_freed, is_free, limit, cancel)?;
        self.take(&mut state)
    }

    /// Returns a slot as soon as one is free beside another, within `limit` and before a cancel. In a pool of several
    /// slots, callers that come this way leave one to those of [`checkout`](Self::checkout).
    pub fn checkout_spare(
        &self,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Option<PooledConn<C>> {
        let has_spare = |state: &State<_>| self.0.has_spare(state);
        let mut state = self.wait_until(&self.0.spare_freed, has_spare, limit, cancel)?;
        self.take(&mut state)
    }

    /// Returns a slot as soon as one is free, or what `other` returns, within `limit` and before a cancel. `other` is
    /// called while no slot is free, and again after each [`recheck`](Self::recheck).
    pub fn checkout_or<T>(
        &self,
        limit: Duration,
        cancel: Option<&CancelToken>,
        mut other: impl FnMut() -> Option<T>,
    ) -> Option<Found<C, T>> {
        let began = Instant::now();
        let mut seen = None;
        loop {
            let left = limit.saturating_sub(began.elapsed());
            let is_changed =
                |state: &State<_>| !state.free.is_empty() || seen != Some(state.rechecks);
            let mut state = self.wait_until(&self.0.slot_freed, is_changed, left, cancel)?;
            if let Some(slot) = self.take(&mut state) {
                return Some(Found::Slot(slot));
            }
            seen = Some(state.rechecks);
            // `other` may drop slots of this pool.
            drop(state);
            if let Some(other) = other() {
                // This caller may have been the one that was notified of a free slot.
                self.0.slot_freed.notify_one();
                return Some(Found::Other(other));
            }
        }
    }

    /// Returns a slot on which the caller may wait for long, as soon as there is one, within `limit` and before a cancel.
    ///
    /// In a pool of several slots, one is never waited on, so waiting callers alone do not exhaust the pool.
    pub fn checkout_to_wait(
        &self,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Option<(PooledConn<C>, WaitPermit<C>)> {
        let takes_wait = |state: &State<_>| self.0.takes_wait(state);
        let mut state = self.wait_until(&self.0.wait_possible, takes_wait, limit, cancel)?;
        let slot = self.take(&mut state)?;
        state.waiting += 1;
        Some((slot, WaitPermit(Arc::clone(&self.0))))
    }

    /// Returns the state as soon as it is as wanted, within `limit` and before a cancel. A caller that `changed` notified
    /// of what it wants gets it also after a cancel, since no other caller was notified.
    fn wait_until(
        &self,
        changed: &Condvar,
        is_wanted: impl Fn(&State<C>) -> bool,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Option<MutexGuard<'_, State<C>>> {
        let state = self.0.state.lock();
        if is_wanted(&state) {
            return Some(state);
        }
        // The callback locks the state.
        drop(state);
        let _wake = cancel.map(|cancel| self.wake_on(cancel));
        let is_cancelled = || cancel.is_some_and(CancelToken::is_cancelled);
        let waits = |state: &mut State<_>| !is_wanted(state) && !is_cancelled();
        let mut state = self.0.state.lock();
        changed.wait_while_for(&mut state, waits, limit);
        is_wanted(&state).then_some(state)
    }

    /// Makes all callers that wait check whether they are cancelled when `cancel` is.
    fn wake_on(&self, cancel: &CancelToken) -> CancelRegistration {
        let shared = Arc::clone(&self.0);
        cancel.on_cancel(move || {
            let _state = shared.state.lock();
            for changed in [
                &shared.slot_freed,
                &shared.spare_freed,
                &shared.wait_possible,
            ] {
                changed.notify_all();
            }
        })
    }
}

/// Gives a connection back on a thread of its own. The application's pool may ask the server whether the connection
/// works, and a guard's drop waits for no server. If there is no thread, the connection is closed.
fn give_back_aside<C: Connection + Send + 'static>(connection: C) {
    let thread = thread::Builder::new().name("lockkeeper-give-back".to_owned());
    let _ = thread.spawn(move || connection.give_back());
}

impl<C> Shared<C> {
    fn has_spare(&self, state: &State<C>) -> bool {
        state.free.len() > self.kept
    }

    fn takes_wait(&self, state: &State<C>) -> bool {
        !state.free.is_empty() && state.waiting < self.most_waiting
    }

    /// Notifies one caller of [`Pool::checkout_to_wait`] if it finds a slot.
    fn notify_wait(&self, state: &State<C>) {
        if self.takes_wait(state) {
            self.wait_possible.notify_one();
        }
    }
}

/// The right to wait on a slot. Dropping it lets another caller wait; the slot may be kept.
pub struct WaitPermit<C>(Arc<Shared<C>>);

impl<C> Drop for WaitPermit<C> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting = state.waiting.saturating_sub(1);
        self.0.notify_wait(&state);
    }
}

/// A slot of a [`Pool`], with its connection if one is open. Dropping it returns both to the pool.
pub struct PooledConn<C> {
    /// The connection. A caller that takes it out and drops it closes it.
    pub connection: Option<C>,
    /// `None` after the slot went to a call that connects, and did not come back.
    pool: Option<Arc<Shared<C>>>,
}

impl<C> Drop for PooledConn<C> {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else {
            return;
        };
        let mut state = pool.state.lock();
        let idle = || state.free.iter().flatten().count();
        let surplus = match self.connection.take() {
            Some(connection) if idle() < pool.most_idle => {
                state.free.push_back(Some(connection));
                None
            }
            closed_or_surplus => {
                state.free.push_front(None);
                closed_or_surplus
            }
        };
        pool.slot_freed.notify_one();
        if pool.has_spare(&state) {
            pool.spare_freed.notify_one();
        }
        pool.notify_wait(&state);
        drop(state);
        surplus.map(pool.give_back);
    }
}

impl<C: Connection + Send + 'static> PooledConn<C> {
    /// Runs `work` on the connection until `deadline`; `work` gets the time that it has. `connect` opens
    /// a connection where none is open. If that fails or is cancelled, the slot is given up. After a cancel, a thread that
    /// still connects keeps it.
    ///
    /// A connection on which something failed is closed, and one that was in use before is replaced at once after
    /// [`Failure::Closed`] or [`Failure::NotSent`]. It is checked before use. A socket takes a request also after the
    /// server has closed the connection, and then it is unknown whether the server carried it out. The check is one
    /// system call of some 0.4 µs.
    ///
    /// # Errors
    /// The failure of `connect`, which is [`Failure::NotSent`], or of `work`; also if the deadline has passed.
    pub fn run<T>(
        &mut self,
        clock: &dyn Clock,
        deadline: HostInstant,
        cancel: Option<&CancelToken>,
        connect: impl Fn(Duration) -> Result<C, Error> + Clone + Send + 'static,
        mut work: impl FnMut(&mut C, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let left = || deadline.saturating_since(clock.now());
        loop {
            let time = left();
            if time.is_zero() {
                return Err(no_time());
            }
            let idle = self.connection.take();
            // Half of the time is kept to replace a dead connection.
            let idle = idle.and_then(|mut it| it.is_quiet(time / 2).then_some(it));
            let was_open = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.connect(left(), cancel, &connect)?,
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

    fn connect(
        &mut self,
        limit: Duration,
        cancel: Option<&CancelToken>,
        connect: &(impl Fn(Duration) -> Result<C, Error> + Clone + Send + 'static),
    ) -> Result<C, Failure> {
        let connect = connect.clone();
        // Without a caller, the next one gets the connection, and without a thread the slot.
        let mut slot = Self {
            connection: None,
            pool: self.pool.take(),
        };
        let open = move || {
            slot.connection = Some(connect(limit)?);
            Ok(slot)
        };
        let opened = connect_until_cancelled(limit, cancel, open);
        *self = opened.map_err(Failure::NotSent)?;
        self.connection.take().ok_or_else(no_time)
    }

    /// Runs `work` as [`run`](Self::run) does, on up to `tries` connections in turn: after [`Failure::Closed`], the next
    /// one leads to another member of a cluster.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on_members<T>(
        &mut self,
        tries: usize,
        clock: &dyn Clock,
        deadline: HostInstant,
        cancel: Option<&CancelToken>,
        connect: impl Fn(Duration) -> Result<C, Error> + Clone + Send + 'static,
        mut work: impl FnMut(&mut C, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut left = tries;
        loop {
            let result = self.run(clock, deadline, cancel, connect.clone(), &mut work);
            left = left.saturating_sub(1);
            let is_over = left == 0 || clock.now() >= deadline;
            match result {
                Err(Failure::Closed(_)) if !is_over => {}
                result => return result,
            }
        }
    }
}
