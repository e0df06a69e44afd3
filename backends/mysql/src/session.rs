//! A session that holds names: until when each of them is believed in, and asking on the one
//! connection that all of them share.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind, HostInstant};
use lockkeeper_remote::Failure;
use parking_lot::{Mutex, MutexGuard};

use crate::connection::Connection;
use crate::names::EncodedName;
use crate::statements::SessionId;
use crate::store::PooledConn;

/// How many names a session remembers that ended by their time.
const MOST_ENDED: usize = 1_000;

/// A hold that lasts so long can have been shown to somebody, who knows it by its session.
const SEEN: Duration = Duration::from_secs(1);

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// An answer did not come. It is asked no more, and stays open until nobody believes in what
    /// it holds: closing it would free that at once.
    Doubt,
    /// The server has ended it, or nothing is held on it any more.
    Over,
}

/// What is known of a name of the session's.
#[derive(Debug)]
struct Entry {
    /// Which grant; 0 while it is being asked for.
    epoch: u64,
    /// When it was granted.
    since: HostInstant,
    /// The lease is over then, whether the server knows or not.
    until: HostInstant,
    /// It is being given back.
    is_ending: bool,
}

struct State {
    health: Health,
    /// No more names come in, and the connection is not used again.
    is_spent: bool,
    /// A hold on it can have been shown to somebody: the pool must not grant the name on the same
    /// connection again.
    was_seen: bool,
    /// Names whose leases ended by their time: a late proof of such a lease must not hold for a
    /// later one.
    ended: HashSet<EncodedName>,
    /// `GET_LOCK` grants a session what it has already, so no name is asked for twice on one.
    names: HashMap<EncodedName, Entry>,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Its wait_timeout: the leases on it have a ttl of as many whole seconds.
    pub(crate) idle_seconds: u64,
    /// Taken out when the session is over.
    place: Mutex<Option<PooledConn>>,
    state: Mutex<State>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl State {
    /// The server holds nothing on the connection for sure, and it can serve others.
    fn is_clean(&self) -> bool {
        self.names.is_empty()
            && self.ended.is_empty()
            && self.health != Health::Doubt
            && !self.is_spent
            && !self.was_seen
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(place) = self.place.get_mut()
            && !self.state.get_mut().is_clean()
        {
            place.connection = None;
        }
    }
}

impl Session {
    /// Of a connection that was just granted `name`.
    pub(crate) fn new(
        place: PooledConn,
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
            place: Mutex::new(Some(place)),
            state: Mutex::new(State {
                health: Health::Good,
                is_spent: false,
                was_seen: false,
                ended: HashSet::new(),
                names: HashMap::from([(name, entry)]),
            }),
        }
    }

    /// Asks on its connection, within `left`.
    pub(crate) fn run<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (place, left) = match self.place.try_lock() {
            Some(place) => (place, left),
            None => {
                let began = Instant::now();
                let place = self.place.try_lock_for(left);
                let left = left.saturating_sub(began.elapsed());
                (place.ok_or_else(|| Failure::NotSent(busy()))?, left)
            }
        };
        self.run_in(place, left, work)
    }

    fn run_in<T>(
        &self,
        mut place: MutexGuard<'_, Option<PooledConn>>,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.state.lock().health == Health::Doubt {
            return Err(Failure::Unanswered(in_doubt()));
        }
        let connection = place.as_mut().and_then(|place| place.connection.as_mut());
        let connection = connection.ok_or_else(|| Failure::Closed(ended()))?;
        let result = work(connection, left);
        match &result {
            Err(Failure::Closed(_)) => {
                self.state.lock().health = Health::Over;
                if let Some(mut place) = place.take() {
                    place.connection = None;
                }
            }
            Err(Failure::Unanswered(_)) => self.state.lock().health = Health::Doubt,
            _ => {}
        }
        drop(place);
        // Its last name may have been forgotten meanwhile.
        self.retire();
        result
    }

    /// Asks as [`run`](Self::run) does, if the session has no more than one name: a call that is cut
    /// short costs all of them. Returns `None` if it has several, or if another call is under way. No
    /// other name is granted on the session during the call.
    pub(crate) fn run_alone<T>(
        &self,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let place = self.place.try_lock()?;
        (self.count() <= 1).then(|| self.run_in(place, left, work))
    }

    /// Lets go of the connection where no name is on the session any more: back to the pool, or
    /// closed. A guard that lost its lease may keep the session itself for long. Who asks on it right
    /// now does this afterwards.
    pub(crate) fn retire(&self) {
        let is_clean = {
            let state = self.state.lock();
            if !state.names.is_empty() {
                return;
            }
            state.is_clean()
        };
        if let Some(mut place) = self.place.try_lock()
            && let Some(mut place) = place.take()
            && !is_clean
        {
            place.connection = None;
        }
    }

    /// Whether somebody asks on it right now.
    pub(crate) fn is_busy(&self) -> bool {
        self.place.is_locked()
    }

    /// How many names it holds.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().names.len()
    }

    /// Keeps a place for a name that is about to be asked for. Returns false if the session takes no
    /// names: that is also so while its last one is given back, since that call may be cut short.
    pub(crate) fn enter(&self, name: &EncodedName) -> bool {
        let mut state = self.state.lock();
        let is_open = state.health == Health::Good
            && !state.is_spent
            && state.names.values().any(|entry| !entry.is_ending);
        if !is_open || state.names.contains_key(name) || state.ended.contains(name) {
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

    /// The name was granted.
    pub(crate) fn settle(&self, name: &str, epoch: u64, now: HostInstant, until: HostInstant) {
        if let Some(entry) = self.state.lock().names.get_mut(name) {
            entry.epoch = epoch;
            entry.since = now;
            entry.until = until;
        }
    }

    /// Whether the lease lasts, as far as this process knows.
    pub(crate) fn lasts(&self, name: &str, epoch: u64, now: HostInstant) -> bool {
        let state = self.state.lock();
        state.health != Health::Over
            && state
                .names
                .get(name)
                .is_some_and(|entry| entry.epoch == epoch && !entry.is_ending && now < entry.until)
    }

    /// The lease was renewed. False: it was ended in the meantime.
    pub(crate) fn extend(&self, name: &str, epoch: u64, until: HostInstant) -> bool {
        match self.state.lock().names.get_mut(name) {
            Some(entry) if entry.epoch == epoch && !entry.is_ending => {
                entry.until = entry.until.max(until);
                true
            }
            _ => false,
        }
    }

    /// Begins to give a lease back. `None`: it is over. Else whether it lasted until now, and
    /// whether other names are on the session.
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
        let was_seen = now.saturating_since(entry.since) >= SEEN;
        state.was_seen |= was_seen;
        Some((lasted, is_shared))
    }

    /// Returns whether the server may hold the name on this session while no guard of this process
    /// does: it is being asked for, or it is to be given back.
    pub(crate) fn has_unclaimed(&self, name: &str, now: HostInstant) -> bool {
        let state = self.state.lock();
        let entry = state.names.get(name);
        entry.is_some_and(|entry| entry.epoch == 0 || entry.is_ending || entry.until <= now)
    }

    /// It could not be given back: the sweeper is to do it.
    pub(crate) fn leave_to_sweeper(&self, name: &str, now: HostInstant) {
        if let Some(entry) = self.state.lock().names.get_mut(name) {
            entry.until = now;
            entry.is_ending = false;
        }
    }

    /// Forgets a name. True where it was the last one: then the session takes no more, and is to
    /// [`retire`](Self::retire).
    pub(crate) fn leave(&self, name: &str) -> bool {
        let mut state = self.state.lock();
        state.names.remove(name);
        state.names.is_empty()
    }

    /// Takes the names whose leases are over by now, and tells when the next one is.
    pub(crate) fn expired(&self, now: HostInstant) -> (Vec<EncodedName>, HostInstant) {
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
        state.ended.extend(expired.iter().cloned());
        state.is_spent |= state.ended.len() > MOST_ENDED;
        (expired, next)
    }

    /// Whether it is asked no more.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.lock().health == Health::Doubt
    }

    /// Lets no more names in, and has the connection closed in the end.
    pub(crate) fn spend(&self) {
        self.state.lock().is_spent = true;
    }
}

fn busy() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection that holds this lock waits for an answer of the server's",
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
        let place = pool.try_checkout().unwrap();
        Session::new(place, id, 30, name, 7, now, now + 30 * SECOND)
    }

    #[test]
    fn session_takes_no_name_while_its_last_one_is_given_back() {
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
    fn connection_of_a_hold_that_was_shown_is_not_used_again() {
        let now = HostInstant::default();
        for (lasted, is_clean) in [(SECOND / 2, true), (SECOND, false)] {
            let session = session(now);
            session.end("shop:a", 7, now + lasted);
            session.leave("shop:a");
            assert_eq!(session.state.lock().is_clean(), is_clean, "{lasted:?}");
        }
    }
}
