//! A session that holds names: how long each lease lasts, and calls on the one connection that all of
//! them share.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind, HostInstant};
use lockkeeper_remote::Failure;
use parking_lot::{Mutex, MutexGuard};

use crate::connection::Connection;
use crate::names::EncodedName;
use crate::statements::SessionId;
use crate::store::PooledConn;

/// The number of expired names that a session remembers.
const MOST_EXPIRED: usize = 1_000;

/// A hold of this length may have been shown to an operator, who knows it by its session.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// A reply is missing. The session gets no more requests, and stays open until all leases on it are
    /// over: closing it would free them at once.
    Doubt,
    /// The server has ended the session, or it holds no names any more.
    Over,
}

/// A name of the session.
#[derive(Debug)]
struct Entry {
    /// The epoch of the grant; 0 while the request is under way.
    epoch: u64,
    /// The time of the grant.
    since: HostInstant,
    /// The end of the lease, whether the server knows it or not.
    until: HostInstant,
    /// Whether the name is being released.
    is_ending: bool,
}

struct State {
    health: Health,
    /// Whether the session takes no more names, and the connection is not used again.
    is_spent: bool,
    /// Whether a hold on it may have been shown to an operator: then the pool must not grant the name on
    /// the same connection again.
    was_shown: bool,
    /// Names with an expired lease: a late proof of such a lease must not hold for a later one.
    expired: HashSet<EncodedName>,
    /// `GET_LOCK` grants a session a name that it holds already, so no name is requested twice.
    names: HashMap<EncodedName, Entry>,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Its wait_timeout: the leases on it have a ttl of as many whole seconds.
    pub(crate) idle_seconds: u64,
    /// The connection, until the session is over.
    slot: Mutex<Option<PooledConn>>,
    state: Mutex<State>,
}

impl State {
    /// Returns whether the server certainly holds nothing on the connection, so that it can serve others.
    fn is_clean(&self) -> bool {
        self.names.is_empty()
            && self.expired.is_empty()
            && self.health != Health::Doubt
            && !self.is_spent
            && !self.was_shown
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.get_mut()
            && !self.state.get_mut().is_clean()
        {
            slot.connection = None;
        }
    }
}

impl Session {
    /// A session on a connection that was just granted `name`.
    pub(crate) fn new(
        slot: PooledConn,
        id: SessionId,
        idle_seconds: u64,
        name: EncodedName,
        epoch: u64,
        now: HostInstant,
        until: HostInstant,
    ) -> Self {
        let entry = Entry {
            epoch,
            since: now,
            until,
            is_ending: false,
        };
        Self {
            id,
            idle_seconds,
            slot: Mutex::new(Some(slot)),
            state: Mutex::new(State {
                health: Health::Good,
                is_spent: false,
                was_shown: false,
                expired: HashSet::new(),
                names: HashMap::from([(name, entry)]),
            }),
        }
    }

    /// Runs `work` on the connection within `left`.
    pub(crate) fn run<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (slot, left) = match self.slot.try_lock() {
            Some(slot) => (slot, left),
            None => {
                let began = Instant::now();
                let slot = self.slot.try_lock_for(left);
                let left = left.saturating_sub(began.elapsed());
                (slot.ok_or_else(|| Failure::NotSent(busy()))?, left)
            }
        };
        self.run_in(slot, left, work)
    }

    fn run_in<T>(
        &self,
        mut slot: MutexGuard<'_, Option<PooledConn>>,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.state.lock().health == Health::Doubt {
            return Err(Failure::Unanswered(in_doubt()));
        }
        let connection = slot.as_mut().and_then(|slot| slot.connection.as_mut());
        let connection = connection.ok_or_else(|| Failure::Closed(ended()))?;
        let result = work(connection, left);
        match &result {
            Err(Failure::Closed(_)) => {
                self.state.lock().health = Health::Over;
                if let Some(mut slot) = slot.take() {
                    slot.connection = None;
                }
            }
            Err(Failure::Unanswered(_)) => self.state.lock().health = Health::Doubt,
            _ => {}
        }
        drop(slot);
        // The last name may have been forgotten meanwhile.
        self.retire();
        result
    }

    /// Runs `work` as [`run`](Self::run) does, if the session has at most one name: a call that is cut
    /// short costs all of them. Returns `None` if it has several, or if another call is under way. No
    /// other name is granted on the session during the call.
    pub(crate) fn run_alone<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let slot = self.slot.try_lock()?;
        (self.count() <= 1).then(|| self.run_in(slot, left, work))
    }

    /// Returns the connection to the pool, or closes it, if the session has no name any more. A guard
    /// that lost its lease may keep the session itself for long. During a call, the call does this at its
    /// end.
    pub(crate) fn retire(&self) {
        let is_clean = {
            let state = self.state.lock();
            if !state.names.is_empty() {
                return;
            }
            state.is_clean()
        };
        if let Some(mut slot) = self.slot.try_lock()
            && let Some(mut slot) = slot.take()
            && !is_clean
        {
            slot.connection = None;
        }
    }

    /// Returns whether a call is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.slot.is_locked()
    }

    /// Returns the number of names.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().names.len()
    }

    /// Enters a name that is about to be requested. Returns false if the session takes no names, also
    /// while its last one is released, since that call may be cut short.
    pub(crate) fn enter(&self, name: &EncodedName) -> bool {
        let mut state = self.state.lock();
        let is_open = state.health == Health::Good
            && !state.is_spent
            && state.names.values().any(|entry| !entry.is_ending);
        if !is_open || state.names.contains_key(name) || state.expired.contains(name) {
            return false;
        }
        let entry = Entry {
            epoch: 0,
            since: HostInstant::NEVER,
            until: HostInstant::NEVER,
            is_ending: false,
        };
        state.names.insert(name.clone(), entry);
        true
    }

    /// Records the grant of a name.
    pub(crate) fn record_grant(
        &self,
        name: &str,
        epoch: u64,
        now: HostInstant,
        until: HostInstant,
    ) {
        if let Some(entry) = self.state.lock().names.get_mut(name) {
            entry.epoch = epoch;
            entry.since = now;
            entry.until = until;
        }
    }

    /// Returns whether the lease lasts, as far as this process knows.
    pub(crate) fn lasts(&self, name: &str, epoch: u64, now: HostInstant) -> bool {
        let state = self.state.lock();
        state.health != Health::Over
            && state
                .names
                .get(name)
                .is_some_and(|entry| entry.epoch == epoch && !entry.is_ending && now < entry.until)
    }

    /// Extends a lease that was renewed. Returns false if it was ended meanwhile.
    pub(crate) fn extend(&self, name: &str, epoch: u64, until: HostInstant) -> bool {
        match self.state.lock().names.get_mut(name) {
            Some(entry) if entry.epoch == epoch && !entry.is_ending => {
                entry.until = entry.until.max(until);
                true
            }
            _ => false,
        }
    }

    /// Begins to release a lease. Returns whether it lasted until now, and whether the session has other
    /// names; `None` if the lease is over.
    pub(crate) fn end(&self, name: &str, epoch: u64, now: HostInstant) -> Option<(bool, bool)> {
        let mut state = self.state.lock();
        let is_shared = state.names.len() > 1;
        let is_over = state.health == Health::Over;
        let entry = state.names.get_mut(name)?;
        if is_over || entry.epoch != epoch || entry.is_ending {
            return None;
        }
        entry.is_ending = true;
        let lasted = now < entry.until;
        let was_shown = now.saturating_since(entry.since) >= SHOWN_AFTER;
        state.was_shown |= was_shown;
        Some((lasted, is_shared))
    }

    /// Returns whether the server may hold the name on this session while no guard of this process
    /// does: it is being requested, or it is to be released.
    pub(crate) fn has_unclaimed(&self, name: &str, now: HostInstant) -> bool {
        let state = self.state.lock();
        let entry = state.names.get(name);
        entry.is_some_and(|entry| entry.epoch == 0 || entry.is_ending || entry.until <= now)
    }

    /// Leaves a name that could not be released to the sweeper.
    pub(crate) fn leave_to_sweeper(&self, name: &str, now: HostInstant) {
        if let Some(entry) = self.state.lock().names.get_mut(name) {
            entry.until = now;
            entry.is_ending = false;
        }
    }

    /// Forgets a name. Returns true if it was the last one: then the session takes no more, and has to
    /// [`retire`](Self::retire).
    pub(crate) fn leave(&self, name: &str) -> bool {
        let mut state = self.state.lock();
        state.names.remove(name);
        state.names.is_empty()
    }

    /// Returns the names whose leases are over by now, and the end of the next one.
    pub(crate) fn take_expired(&self, now: HostInstant) -> (Vec<EncodedName>, HostInstant) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut expired = Vec::new();
        let mut next = HostInstant::NEVER;
        for (name, entry) in &mut state.names {
            if entry.is_ending {
                continue;
            }
            if entry.until <= now {
                entry.is_ending = true;
                expired.push(name.clone());
            } else {
                next = next.min(entry.until);
            }
        }
        state.expired.extend(expired.iter().cloned());
        state.is_spent |= state.expired.len() > MOST_EXPIRED;
        (expired, next)
    }

    /// Returns whether a reply is missing, so that the session gets no more requests.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.lock().health == Health::Doubt
    }

    /// Lets the session take no more names, and has the connection closed in the end.
    pub(crate) fn spend(&self) {
        self.state.lock().is_spent = true;
    }
}

fn busy() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection that holds this lock waits for a reply of the server",
    )
}

fn in_doubt() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the server did not answer on the connection that holds this lock; it frees the lock by itself after its ttl",
    )
}

fn ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server has ended the session that held this lock",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn session(now: HostInstant) -> Session {
        let pool = lockkeeper_remote::Pool::new(1);
        let id = SessionId { id: 1, start: 1 };
        let name = EncodedName::new("shop", "a");
        let slot = pool.try_checkout().unwrap();
        Session::new(slot, id, 30, name, 7, now, now + 30 * SECOND)
    }

    #[test]
    fn session_takes_no_name_while_its_last_one_is_released() {
        let now = HostInstant::default();
        let session = session(now);
        let [first, second] = ["b", "c"].map(|name| EncodedName::new("shop", name));
        assert!(session.enter(&first));
        session.leave(&first);
        assert_eq!(session.end("shop:a", 7, now), Some((true, false)));
        // That call may be cut short, and then a name that was granted meanwhile would be lost.
        assert!(!session.enter(&second));
    }

    #[test]
    fn connection_of_a_long_hold_is_not_used_again() {
        let now = HostInstant::default();
        for (lasted, is_clean) in [(SECOND / 2, true), (SECOND, false)] {
            let session = session(now);
            session.end("shop:a", 7, now + lasted);
            session.leave("shop:a");
            assert_eq!(session.state.lock().is_clean(), is_clean, "{lasted:?}");
        }
    }
}
