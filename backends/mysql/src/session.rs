//! A session that holds names: the state of each name, and calls on the one connection that all of them
//! share.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lockkeeper_core::HostInstant;
use lockkeeper_remote::Failure;
use parking_lot::{Mutex, MutexGuard};

use crate::connection::Connection;
use crate::failure::{unavailable, unknown};
use crate::names::EncodedName;
use crate::statements::SessionId;
use crate::store::PooledConn;

/// The number of expired names that a session remembers.
const MOST_EXPIRED: usize = 1_000;

/// A hold of this length may have been shown to an operator, who knows it by its session.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The longest that a server lets a session be idle: a year.
const LONGEST_IDLE: u64 = 31_536_000;

/// Returns the whole seconds that a session with a lease of `ttl` may be idle.
pub(crate) fn idle_seconds(ttl: Duration) -> u64 {
    let part = u64::from(ttl.subsec_nanos() > 0);
    ttl.as_secs().saturating_add(part).clamp(1, LONGEST_IDLE)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// A reply is missing. The session gets no more requests, and stays open until all leases on it are
    /// over: closing it would free them at once.
    Doubt,
    /// The server has ended the session.
    Ended,
}

/// The state of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// A request for the name is under way.
    Requested,
    /// The name was granted. The lease ends at `until`, whether the server knows it or not.
    Leased {
        epoch: u64,
        since: HostInstant,
        until: HostInstant,
    },
    /// No guard holds the name. The sweeper releases it at that time.
    LeftOver(HostInstant),
    /// The name is being released.
    Releasing,
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

impl State {
    /// Returns whether the server certainly holds nothing on the connection, so that it can serve others.
    fn is_clean(&self) -> bool {
        self.health == Health::Good
            && self.names.is_empty()
            && self.expired.is_empty()
            && !self.is_spent
            && !self.was_shown
    }

    fn is_over(&self) -> bool {
        self.health == Health::Ended || self.names.is_empty()
    }

    /// Returns the state of a name while this lease stands.
    fn leased(&mut self, name: &EncodedName, epoch: u64) -> Option<&mut Entry> {
        let is_ended = self.health == Health::Ended;
        let entry = self.names.get_mut(name).filter(|_| !is_ended)?;
        matches!(entry, Entry::Leased { epoch: known, .. } if *known == epoch).then_some(entry)
    }
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Its wait_timeout: the leases on it have a ttl of as many whole seconds.
    pub(crate) idle_seconds: u64,
    /// The connection, until the session is over.
    slot: Mutex<Option<PooledConn>>,
    state: Mutex<State>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.get_mut() {
            slot.connection = None;
        }
    }
}

impl Session {
    /// A session on a connection that `name` is requested on.
    pub(crate) fn new(
        slot: PooledConn,
        id: SessionId,
        idle_seconds: u64,
        name: &EncodedName,
    ) -> Self {
        Self {
            id,
            idle_seconds,
            slot: Mutex::new(Some(slot)),
            state: Mutex::new(State {
                health: Health::Good,
                is_spent: false,
                was_shown: false,
                expired: HashSet::new(),
                names: HashMap::from([(name.clone(), Entry::Requested)]),
            }),
        }
    }

    /// Returns how long a call may take that must not be cut short, since other names depend on its
    /// session: as long as a lease lasts.
    pub(crate) fn longest_call(&self) -> Duration {
        Duration::from_secs(self.idle_seconds)
    }

    /// Runs `work` on the connection within `left`.
    pub(crate) fn run<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let Some(slot) = self.slot.try_lock_for(left) else {
            return Err(Failure::NotSent(unavailable(
                "the connection that holds this lock waits for a reply of the server",
            )));
        };
        self.run_in(slot, left.saturating_sub(began.elapsed()), work)
    }

    /// Runs `work` as [`run`](Self::run) does, if the session has at most one name: a call that is cut
    /// short costs all of them. Returns `None` if it has several, or if another call is under way. No
    /// other name is granted on the session during the call.
    pub(crate) fn run_alone<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let slot = self.slot.try_lock()?;
        let is_alone = self.state.lock().names.len() <= 1;
        is_alone.then(|| self.run_in(slot, left, work))
    }

    fn run_in<T>(
        &self,
        mut slot: MutexGuard<'_, Option<PooledConn>>,
        left: Duration,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.is_in_doubt() {
            return Err(unknown(
                "the server did not answer on the connection that holds this lock; it frees the lock by itself after its ttl",
            ));
        }
        let connection = slot.as_mut().and_then(|slot| slot.connection.as_mut());
        let result = match connection {
            Some(connection) => {
                connection.limit = left;
                work(connection)
            }
            None => Err(Failure::Closed(unavailable(
                "the server has ended the session that held this lock",
            ))),
        };
        match &result {
            Err(Failure::Closed(_)) => {
                self.state.lock().health = Health::Ended;
                if let Some(slot) = slot.as_mut() {
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

    /// Returns the connection to the pool, or closes it, if the session is over. A guard that lost its
    /// lease may keep the session itself for long. During a call, the call does this at its end.
    fn retire(&self) {
        let is_clean = {
            let state = self.state.lock();
            if !state.is_over() {
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

    /// Returns whether the server has ended the session, or it has no name any more: it gets no more.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over()
    }

    /// Returns whether a reply is missing, so that the session gets no more requests.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.lock().health == Health::Doubt
    }

    /// Returns how much the session is used: whether a call is under way, and the number of names.
    pub(crate) fn load(&self) -> (bool, usize) {
        (self.slot.is_locked(), self.state.lock().names.len())
    }

    /// Lets the session take no more names, and has the connection closed in the end.
    pub(crate) fn spend(&self) {
        self.state.lock().is_spent = true;
    }

    /// Enters a name that is about to be requested. Returns false if the session takes no names, also
    /// while its last one is released, since that call may be cut short.
    pub(crate) fn enter(&self, name: &EncodedName) -> bool {
        let mut state = self.state.lock();
        let is_releasing = |entry: &Entry| matches!(entry, Entry::Releasing);
        let takes_names = state.health == Health::Good
            && !state.is_spent
            && !state.names.values().all(is_releasing);
        if !takes_names || state.names.contains_key(name) || state.expired.contains(name) {
            return false;
        }
        state.names.insert(name.clone(), Entry::Requested);
        true
    }

    /// Records the state of a name that was entered.
    pub(crate) fn set(&self, name: &EncodedName, entry: Entry) {
        if let Some(known) = self.state.lock().names.get_mut(name) {
            *known = entry;
        }
    }

    /// Returns whether the lease lasts, as far as this process knows.
    pub(crate) fn lasts(&self, name: &EncodedName, epoch: u64, now: HostInstant) -> bool {
        let mut state = self.state.lock();
        matches!(state.leased(name, epoch), Some(Entry::Leased { until, .. }) if now < *until)
    }

    /// Extends a lease that was renewed. Returns false if it was ended meanwhile.
    pub(crate) fn extend(&self, name: &EncodedName, epoch: u64, to: HostInstant) -> bool {
        let mut state = self.state.lock();
        let Some(Entry::Leased { until, .. }) = state.leased(name, epoch) else {
            return false;
        };
        *until = to.max(*until);
        true
    }

    /// Begins to release a lease. Returns whether it lasted until now; `None` if it has ended.
    pub(crate) fn begin_release(
        &self,
        name: &EncodedName,
        epoch: u64,
        now: HostInstant,
    ) -> Option<bool> {
        let mut state = self.state.lock();
        let entry = state.leased(name, epoch)?;
        let Entry::Leased { since, until, .. } = std::mem::replace(entry, Entry::Releasing) else {
            return None;
        };
        state.was_shown |= now.saturating_since(since) >= SHOWN_AFTER;
        Some(now < until)
    }

    /// Forgets a name, and retires with the last one.
    pub(crate) fn leave(&self, name: &EncodedName) {
        self.state.lock().names.remove(name);
        self.retire();
    }

    /// Returns whether the server may hold the name on this session while no guard of this process
    /// does: it is being requested, or it is to be released.
    pub(crate) fn has_unclaimed(&self, name: &EncodedName, now: HostInstant) -> bool {
        match self.state.lock().names.get(name) {
            None => false,
            Some(Entry::Leased { until, .. }) => *until <= now,
            Some(Entry::Requested | Entry::LeftOver(_) | Entry::Releasing) => true,
        }
    }

    /// Begins to release all names whose leases are over by now. Returns them, and the end of the next
    /// one.
    pub(crate) fn take_expired(&self, now: HostInstant) -> (Vec<EncodedName>, HostInstant) {
        let mut state = self.state.lock();
        let mut expired = Vec::new();
        let mut next = HostInstant::NEVER;
        for (name, entry) in &mut state.names {
            match *entry {
                Entry::Leased { until, .. } | Entry::LeftOver(until) if until <= now => {
                    *entry = Entry::Releasing;
                    expired.push(name.clone());
                }
                Entry::Leased { until, .. } | Entry::LeftOver(until) => next = next.min(until),
                Entry::Requested | Entry::Releasing => {}
            }
        }
        state.expired.extend(expired.iter().cloned());
        state.is_spent |= state.expired.len() > MOST_EXPIRED;
        (expired, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn name(name: &str) -> EncodedName {
        EncodedName::new("shop", name)
    }

    /// A session that holds `shop:a` since `now`.
    fn session(now: HostInstant) -> Session {
        let slot = lockkeeper_remote::Pool::new(1).try_checkout().unwrap();
        let session = Session::new(slot, SessionId { id: 1, start: 1 }, 30, &name("a"));
        let leased = Entry::Leased {
            epoch: 7,
            since: now,
            until: now + 30 * SECOND,
        };
        session.set(&name("a"), leased);
        session
    }

    #[test]
    fn lease_is_never_shorter_than_its_ttl() {
        for (millis, seconds) in [(100, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(idle_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(idle_seconds(Duration::MAX), LONGEST_IDLE);
    }

    #[test]
    fn session_takes_no_name_while_its_last_one_is_released() {
        let now = HostInstant::default();
        let session = session(now);
        assert!(session.enter(&name("b")));
        session.leave(&name("b"));
        assert_eq!(session.begin_release(&name("a"), 7, now), Some(true));
        // That call may be cut short, and then a name that was granted meanwhile would be lost.
        assert!(!session.enter(&name("c")));
    }

    #[test]
    fn connection_of_a_long_hold_is_not_used_again() {
        let now = HostInstant::default();
        for (lasted, is_clean) in [(SECOND / 2, true), (SECOND, false)] {
            let session = session(now);
            session.begin_release(&name("a"), 7, now + lasted);
            session.leave(&name("a"));
            assert_eq!(session.state.lock().is_clean(), is_clean, "{lasted:?}");
        }
    }
}
