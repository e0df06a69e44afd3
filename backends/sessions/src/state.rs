//! The state of a session: its names, and whether its connection is good.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::mem::replace;
use std::time::Duration;

use lockkeeper_core::HostInstant;

/// The number of expired names that a session remembers.
const MOST_EXPIRED: usize = 1_000;

/// A hold of this length may have been shown to an operator, who knows it by its session.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    /// A reply is missing. The session gets no more requests, and stays open until all leases on it are
    /// over: closing it would free them at once.
    Doubt,
    /// The server has ended the session.
    Ended,
}

/// A name of the session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The epoch and the time of the grant, while a guard holds the name.
    pub(crate) granted: Option<(u64, HostInstant)>,
    /// When the sweeper releases the name: at the end of the lease, whether the server knows it or not.
    pub(crate) until: HostInstant,
}

/// A name that is being requested or released.
const UNCLAIMED: Entry = Entry {
    granted: None,
    until: HostInstant::NEVER,
};

#[derive(Debug)]
pub(crate) struct State<N> {
    pub(crate) health: Health,
    /// Whether the session takes no more names, and the connection is not used again.
    pub(crate) is_spent: bool,
    /// Whether the session has returned its connection to the pool, or closed it.
    pub(crate) is_retired: bool,
    /// Whether a hold on it may have been shown to an operator: then the pool must not grant the name on
    /// the same connection again.
    was_shown: bool,
    /// Names with an expired lease: a late proof of such a lease must not hold for a later one.
    expired: HashSet<N>,
    /// Names about which a reply is missing: the server may hold them until the session ends.
    pub(crate) unanswered: HashSet<N>,
    /// A server grants a session a name that it holds already, so no name is requested twice.
    pub(crate) names: HashMap<N, Entry>,
}

impl<N: Clone + Eq + Hash + 'static> State<N> {
    /// The state of a new session, on which `names` are requested.
    pub(crate) fn new(names: impl IntoIterator<Item = N>) -> Self {
        Self {
            health: Health::Good,
            is_spent: false,
            is_retired: false,
            was_shown: false,
            expired: HashSet::new(),
            unanswered: HashSet::new(),
            names: names.into_iter().map(|name| (name, UNCLAIMED)).collect(),
        }
    }

    /// Records that a reply is missing.
    pub(crate) fn doubt(&mut self) {
        if self.health == Health::Good {
            self.health = Health::Doubt;
        }
    }

    /// Records that the server has ended the session. Returns whether leases have ended with it.
    pub(crate) fn end(&mut self) -> bool {
        let before = replace(&mut self.health, Health::Ended);
        before != Health::Ended && self.has_leases()
    }

    fn has_leases(&self) -> bool {
        self.names.values().any(|entry| entry.granted.is_some())
    }

    /// Records that the reply to a request about these names is missing.
    pub(crate) fn leave_unanswered<'a>(&mut self, names: impl Iterator<Item = &'a N>) {
        for name in names {
            self.names.remove(name);
            self.unanswered.insert(name.clone());
        }
    }

    /// Returns whether the server has ended the session, or it has no name any more: it gets no more.
    pub(crate) fn is_over(&self) -> bool {
        self.health == Health::Ended || self.names.is_empty()
    }

    /// Returns whether the server certainly holds nothing on the connection, so that it can serve others.
    pub(crate) fn is_clean(&self) -> bool {
        self.health == Health::Good
            && self.names.is_empty()
            && self.expired.is_empty()
            && !self.is_spent
            && !self.was_shown
    }

    /// Enters a name that is about to be requested. Returns false if the session takes no names, also
    /// while its last one is released, since that call may be cut short.
    pub(crate) fn enter(&mut self, name: &N) -> bool {
        let takes_name = self.health == Health::Good
            && !self.is_spent
            && self.has_leases()
            && !self.names.contains_key(name)
            && !self.expired.contains(name);
        if takes_name {
            self.names.insert(name.clone(), UNCLAIMED);
        }
        takes_name
    }

    /// Enters a name that is about to be requested behind the release of `released`, which was sent. That one is taken
    /// once. Returns false if the session does not take the name.
    pub(crate) fn enter_behind(&mut self, released: &mut Option<&N>, name: &N) -> bool {
        let takes_name = self.health == Health::Good
            && !self.is_spent
            && !self.was_shown
            && !self.expired.contains(name)
            && (released.take_if(|it| *it == name).is_some() || !self.names.contains_key(name));
        if takes_name {
            // An insert keeps the key of an equal name, which may be of another mode, and the sweeper releases by the key.
            self.names.remove(name);
            self.names.insert(name.clone(), UNCLAIMED);
        }
        takes_name
    }

    /// Changes the entry of a name that was entered. Returns whether the session has ended before.
    pub(crate) fn set(&mut self, name: &N, entry: Entry) -> bool {
        if let Some(known) = self.names.get_mut(name) {
            *known = entry;
        }
        self.health == Health::Ended
    }

    /// Returns the entry of a name while the lease with this epoch stands.
    fn leased(&mut self, name: &N, epoch: u64) -> Option<&mut Entry> {
        let is_ended = self.health == Health::Ended;
        let entry = self.names.get_mut(name).filter(|_| !is_ended)?;
        (entry.granted?.0 == epoch).then_some(entry)
    }

    /// Returns whether the lease lasts, as far as this process knows.
    pub(crate) fn lasts(&mut self, name: &N, epoch: u64, now: HostInstant) -> bool {
        let entry = self.leased(name, epoch);
        entry.is_some_and(|entry| now < entry.until)
    }

    /// Extends a lease that was renewed. Returns false if it was ended meanwhile.
    pub(crate) fn extend(&mut self, name: &N, epoch: u64, until: HostInstant) -> bool {
        let entry = self.leased(name, epoch);
        entry.is_some_and(|entry| {
            entry.until = entry.until.max(until);
            true
        })
    }

    /// Begins to release a lease. Returns whether it lasted until now; `None` if it has ended.
    pub(crate) fn begin_release(&mut self, name: &N, epoch: u64, now: HostInstant) -> Option<bool> {
        let Entry { granted, until } = replace(self.leased(name, epoch)?, UNCLAIMED);
        let (_, since) = granted?;
        self.was_shown |= now.saturating_since(since) >= SHOWN_AFTER;
        Some(now < until)
    }

    /// Returns whether the server may hold the name on this session while no guard of this process does. It is being
    /// requested, it is to be released, or the reply about it is missing.
    pub(crate) fn has_unclaimed(&self, name: &N, now: HostInstant) -> bool {
        let is_unclaimed = |entry: &Entry| entry.granted.is_none() || entry.until <= now;
        self.unanswered.contains(name) || self.names.get(name).is_some_and(is_unclaimed)
    }

    /// Marks all names with an expired lease as being released. Returns these names, and when the next
    /// lease expires. If a reply is missing or the session has ended, the names are dropped instead, since the session gets no
    /// more requests.
    pub(crate) fn take_expired(&mut self, now: HostInstant) -> (Vec<N>, HostInstant) {
        let mut expired = Vec::new();
        for (name, entry) in &mut self.names {
            if entry.until <= now {
                *entry = UNCLAIMED;
                expired.push(name.clone());
            }
        }
        if self.health != Health::Good {
            self.names.retain(|name, _| !expired.contains(name));
            expired.clear();
        }
        self.expired.extend(expired.iter().cloned());
        self.is_spent |= self.expired.len() > MOST_EXPIRED;
        let next = self.names.values().map(|entry| entry.until).min();
        (expired, next.unwrap_or(HostInstant::NEVER))
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The state of a session that holds `a` since `now`.
    fn held(since: HostInstant) -> State<&'static str> {
        let mut state = State::new(["a"]);
        let granted = Some((7, since));
        let until = since + 30 * SECOND;
        state.set(&"a", Entry { granted, until });
        state
    }

    #[test]
    fn session_takes_no_name_while_its_last_one_is_released() {
        let now = HostInstant::default();
        let mut state = held(now);
        assert!(state.enter(&"b"));
        state.names.remove(&"b");
        assert_eq!(state.begin_release(&"a", 7, now), Some(true));
        // That call may be cut short, and then a name that was granted meanwhile would be lost.
        assert!(!state.enter(&"c"));
    }

    #[test]
    fn name_without_a_reply_is_unclaimed_while_another_lease_lasts() {
        let now = HostInstant::default();
        let mut state = held(now);
        assert!(state.enter(&"b"));
        state.doubt();
        state.leave_unanswered(["b"].iter());
        assert!(!state.is_over(), "closing it would free the other name");
        assert!(state.has_unclaimed(&"b", now));
        assert!(!state.has_unclaimed(&"a", now));
    }

    /// A name that equals that of the other mode.
    #[derive(Clone, Debug)]
    struct InMode(&'static str, bool);

    impl PartialEq for InMode {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    impl Eq for InMode {}

    impl Hash for InMode {
        fn hash<H: Hasher>(&self, hasher: &mut H) {
            self.0.hash(hasher);
        }
    }

    #[test]
    fn lease_behind_a_release_expires_in_its_own_mode() {
        let now = HostInstant::default();
        let [shared, exclusive] = [true, false].map(|is_shared| InMode("a", is_shared));
        let mut state = State::new([shared.clone()]);
        assert!(state.enter_behind(&mut Some(&shared), &exclusive));
        let (granted, until) = (Some((7, now)), now + SECOND);
        state.set(&exclusive, Entry { granted, until });
        let (expired, _) = state.take_expired(until);
        let modes: Vec<_> = expired
            .iter()
            .map(|InMode(_, is_shared)| *is_shared)
            .collect();
        assert_eq!(modes, [false]);
    }

    #[test]
    fn end_of_a_session_is_noticed_for_each_lease() {
        let now = HostInstant::default();
        assert!(held(now).end());
        // It ends between the reply and the record of the grant.
        let mut state = State::new(["a"]);
        assert!(!state.end());
        let granted = Some((7, now));
        let until = now + 30 * SECOND;
        assert!(state.set(&"a", Entry { granted, until }));
    }

    #[test]
    fn connection_of_a_long_hold_is_not_used_again() {
        let now = HostInstant::default();
        for (lasted, is_clean) in [(SECOND / 2, true), (SECOND, false)] {
            let mut state = held(now);
            state.begin_release(&"a", 7, now + lasted);
            state.names.remove(&"a");
            assert_eq!(state.is_clean(), is_clean, "{lasted:?}");
        }
    }
}
