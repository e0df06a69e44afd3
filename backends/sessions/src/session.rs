//! A session that holds names, and calls on the one connection that all of them share.
//!
//! Operators know a hold by its session and its name. So a connection on which a hold lasted 1 s is closed: the next
//! hold on it could be mistaken for the one that was shown.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{HostInstant, LeaseVerifiers};
use lockkeeper_remote::{Failure, PooledConn, no_time, unavailable, unknown};
use parking_lot::{Mutex, MutexGuard};

use crate::connection::SessionConnection;
use crate::requests::{Replies, Requests};
use crate::state::{Health, State};

pub(crate) struct Session<C: SessionConnection> {
    pub(crate) id: C::Id,
    /// The time that it may be idle: that of the leases on it.
    pub(crate) idle: Duration,
    /// The connection, until the session is over.
    slot: Mutex<Option<PooledConn<C>>>,
    state: Mutex<State<C::Name>>,
    /// The keepers of the leases on it.
    verifiers: Arc<LeaseVerifiers>,
}

impl<C: SessionConnection> fmt::Debug for Session<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl<C: SessionConnection> Drop for Session<C> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.get_mut() {
            slot.connection = None;
        }
    }
}

impl<C: SessionConnection> Session<C> {
    /// A session on a connection on which `names` are requested.
    pub(crate) fn new(
        slot: PooledConn<C>,
        id: C::Id,
        idle: Duration,
        names: impl IntoIterator<Item = C::Name>,
        verifiers: &Arc<LeaseVerifiers>,
    ) -> Self {
        Self {
            id,
            idle,
            slot: Mutex::new(Some(slot)),
            state: Mutex::new(State::new(names)),
            verifiers: Arc::clone(verifiers),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<C::Name>> {
        self.state.lock()
    }

    /// Returns whether a call is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.slot.is_locked()
    }

    /// Returns how long a call may take that must not be cut short, since other names depend on its
    /// session: as long as a lease lasts.
    pub(crate) fn longest_call(&self) -> Duration {
        self.idle
    }

    /// Runs `work` on the connection within `left`.
    pub(crate) fn run<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut C) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let Some(slot) = self.slot.try_lock_for(left) else {
            return Err(Failure::NotSent(unavailable(
                "the connection that holds this lock waits for a reply of the server",
            )));
        };
        self.run_in(slot, left.saturating_sub(began.elapsed()), work)
    }

    /// Runs `work` about `names` of the session's names as [`run`](Self::run) does, if the session has no others:
    /// a call that is cut short costs all of them. Returns `None` if it has more, or if another call is under
    /// way. No other name is granted on the session during the call.
    pub(crate) fn run_alone<T>(
        &self,
        names: usize,
        left: Duration,
        work: impl FnOnce(&mut C) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let slot = self.slot.try_lock()?;
        let is_alone = self.state().names.len() <= names;
        is_alone.then(|| self.run_in(slot, left, work))
    }

    fn run_in<T>(
        &self,
        mut slot: MutexGuard<'_, Option<PooledConn<C>>>,
        left: Duration,
        work: impl FnOnce(&mut C) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if left.is_zero() {
            return Err(no_time());
        }
        let health = self.state().health;
        if health == Health::Doubt {
            return Err(unknown(
                "the server did not answer on the connection that holds this lock; it frees the lock by itself after its ttl",
            ));
        }
        let connection = slot.as_mut().and_then(|slot| slot.connection.as_mut());
        let result = match connection.filter(|_| health == Health::Good) {
            Some(connection) => {
                connection.link_mut().set_limit(left);
                work(connection)
            }
            None => Err(Failure::Closed(unavailable(
                "the server has ended the session that held this lock",
            ))),
        };
        let has_ended = matches!(result, Err(Failure::Closed(_)));
        if has_ended && let Some(slot) = slot.as_mut() {
            slot.connection = None;
        }
        if matches!(result, Err(Failure::Unanswered(_))) {
            self.state().doubt();
        }
        drop(slot);
        if has_ended {
            self.end();
        } else {
            // The last name may have been forgotten meanwhile, or the session may have ended.
            self.retire();
        }
        result
    }

    /// Sends the release of a lease that lasts, without waiting for the reply. Returns false if nothing was sent.
    pub(crate) fn send_release(&self, name: &C::Name, epoch: u64, now: HostInstant) -> bool {
        let Some(mut slot) = self.slot.try_lock() else {
            return false;
        };
        let connection = slot.as_mut().and_then(|slot| slot.connection.as_mut());
        let lasts =
            |state: &mut State<_>| state.health == Health::Good && state.lasts(name, epoch, now);
        let Some(connection) = connection.filter(|_| lasts(&mut self.state())) else {
            return false;
        };
        let sent = connection.send_release(name);
        let mut state = self.state();
        match sent {
            // The sweeper may have begun with it meanwhile.
            Ok(is_sent) => is_sent && state.begin_release(name, epoch, now).is_some(),
            Err(_) => {
                state.doubt();
                false
            }
        }
    }

    /// Gives up the reply to a release that was sent, and the connection when no other lease lasts on it.
    pub(crate) fn lose_reply(&self, name: &C::Name) {
        let mut state = self.state();
        state.is_spent = true;
        state.leave_unanswered([name].into_iter());
        drop(state);
        self.retire();
    }

    /// Returns whether the connection was seen to have ended.
    pub(crate) fn is_cut(&self) -> bool {
        let slot = self.slot.lock();
        let connection = slot.as_ref().and_then(|slot| slot.connection.as_ref());
        connection.is_some_and(|it| it.link().has_ended())
    }

    /// Records that the server has ended the session, and with it all leases on it. Their renewals answer so from now
    /// on, and the keepers renew them at once.
    pub(crate) fn end(&self) {
        let had_leases = self.state().end();
        self.retire();
        if had_leases {
            self.verifiers.verify_all();
        }
    }

    /// Returns the connection to the pool, or closes it, if the session is over. A guard that lost its
    /// lease may keep the session itself for long. During a call, the call does this at its end.
    pub(crate) fn retire(&self) {
        let (is_over, is_clean) = {
            let state = self.state();
            (state.is_over(), state.is_clean())
        };
        if is_over
            && let Some(mut slot) = self.slot.try_lock()
            && let Some(mut slot) = slot.take()
        {
            if !is_clean {
                slot.connection = None;
            }
            drop(slot);
            self.state().is_retired = true;
        }
    }

    /// Forgets names, and retires with the last one.
    pub(crate) fn leave<'a>(&self, names: impl IntoIterator<Item = &'a C::Name>) {
        let mut state = self.state();
        for name in names {
            state.names.remove(name);
        }
        drop(state);
        self.retire();
    }

    /// Asks the server on the session's connection.
    pub(crate) fn ask(
        &self,
        connection: &mut C,
        requests: &Requests<C::Name>,
    ) -> Result<Replies, Failure> {
        if requests.idle > self.idle {
            self.state().is_spent = true;
            connection.set_idle(requests.idle)?;
        }
        let began = Instant::now();
        let replies = connection.ask(requests)?;
        connection.link().shared.replied_after(began.elapsed());
        Ok(replies)
    }
}
