//! What the queue knows of one name in use: which thread asks the store, the holds, and the threads that
//! wait, first come, first served.
//!
//! Exclusive and shared locks and permits differ here in [`NameState::may_ask`] and
//! [`NameState::lease_for`] alone.

use std::collections::VecDeque;

use super::hold::Hold;
use super::waiter::{Given, Unserved, WaitKind, Waiter};
use crate::error::Error;
use crate::mode::Mode;
use crate::options::LeaseTerms;
use crate::sync::Arc;

/// Decides whether a lease serves a further guard that wants these terms. If so, it counts a hand-over and
/// returns the guard's number. It runs under the mutex of a shard.
pub(crate) type HandOver = dyn Fn(&Hold, LeaseTerms) -> Option<u32> + Send + Sync;

pub(crate) struct NameState {
    /// The thread that asks the store.
    head: Option<Head>,
    holds: Holds,
    /// The number of leases that are on their way back to the store.
    releasing: u32,
    pub(super) waiters: VecDeque<Arc<Waiter>>,
    /// Why the store did not answer the last attempt of a head, or a release.
    pub(super) store_error: Option<Error>,
    /// How often the store's answer to a head showed a holder, of this process or another.
    pub(super) holders_seen: u64,
}

struct Head {
    mode: Mode,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The store's first answer is not there yet.
    Asking,
    /// The last attempt failed, and another follows.
    Failing,
    /// It waits in the store: another holder was seen.
    Contended,
}

/// A lease that this process has.
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
    /// The number of guards that have it now: more than one only of a shared lease, none while it lingers.
    guards: u32,
    /// How long it lingers, in nanoseconds.
    until: u64,
}

impl Held {
    /// Returns how long the lease lingers, in nanoseconds, if it has no guard.
    pub(super) fn lingers_until(&self) -> Option<u64> {
        (self.guards == 0).then_some(self.until)
    }
}

/// The leases of a name: rarely more than one, for which nothing is allocated.
#[derive(Default)]
struct Holds {
    first: Option<Held>,
    more: Vec<Held>,
}

impl Holds {
    fn iter(&self) -> impl Iterator<Item = &Held> {
        self.first.iter().chain(&self.more)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.first.iter_mut().chain(&mut self.more)
    }

    fn push(&mut self, held: Held) {
        match &self.first {
            None => self.first = Some(held),
            Some(_) => self.more.push(held),
        }
    }

    /// Removes the leases for which `is_one` is true, and passes them to `taken`.
    fn remove(&mut self, is_one: impl Fn(&Held) -> bool, mut taken: impl FnMut(Arc<Hold>)) {
        for held in self.more.extract_if(.., |held| is_one(held)) {
            taken(held.hold);
        }
        if let Some(held) = self.first.take_if(|held| is_one(held)) {
            taken(held.hold);
            self.first = self.more.pop();
        }
    }
}

impl NameState {
    fn new() -> Self {
        Self {
            head: None,
            holds: Holds::default(),
            releasing: 0,
            waiters: VecDeque::new(),
            store_error: None,
            holders_seen: 0,
        }
    }

    /// The state of a name for which a thread asks the store.
    pub(super) fn asked_for(mode: Mode) -> Self {
        let stage = Stage::Asking;
        Self {
            head: Some(Head { mode, stage }),
            ..Self::new()
        }
    }

    /// The state of a name whose lease is on its way back to the store.
    pub(super) fn releasing() -> Self {
        Self {
            releasing: 1,
            ..Self::new()
        }
    }

    /// Returns whether nothing is left to remember.
    pub(super) fn is_unused(&self) -> bool {
        self.head.is_none()
            && self.holds.first.is_none()
            && self.releasing == 0
            && self.waiters.is_empty()
    }

    /// Returns whether no thread waits, asks the store, or gives a lease back.
    pub(super) fn is_idle(&self) -> bool {
        let has_guards = |held: &Held| held.guards > 0;
        self.head.is_none()
            && self.releasing == 0
            && self.waiters.is_empty()
            && self.holds.iter().all(has_guards)
    }

    /// Returns whether a thread that cannot be served now is refused by a holder, and not by the order of
    /// the threads alone.
    pub(super) fn is_busy(&self) -> bool {
        match &self.head {
            Some(head) => head.stage == Stage::Contended,
            None => self.releasing == 0 && self.holds.first.is_some(),
        }
    }

    /// Returns the error of a store that does not answer now.
    pub(super) fn silence(&self) -> Option<&Error> {
        let is_asked = match &self.head {
            Some(head) => head.stage == Stage::Failing,
            None => self.releasing > 0,
        };
        self.store_error.as_ref().filter(|_| is_asked)
    }

    pub(super) fn held(&self) -> impl Iterator<Item = &Held> {
        self.holds.iter()
    }

    /// Returns why a permit is refused while permits of another limit are held.
    pub(super) fn mismatch(&self, mode: Mode) -> Option<Given> {
        let held = match (&self.holds.first, &self.head) {
            (Some(held), _) => held.hold.mode,
            // It waits for permits of its own limit.
            (None, Some(head)) if head.stage == Stage::Contended => head.mode,
            _ => return None,
        };
        match (mode, held) {
            (Mode::Permit { limit }, Mode::Permit { limit: held }) if limit != held => {
                Some(Given::Nothing(Unserved::LimitMismatch { limit, held }))
            }
            _ => None,
        }
    }

    /// Returns what a thread gets at once that comes after the head and before all waiters.
    pub(super) fn offer(
        &mut self,
        terms: LeaseTerms,
        kind: WaitKind,
        hand_over: &HandOver,
    ) -> Option<Given> {
        if let Some(given) = self.mismatch(terms.mode) {
            return Some(given);
        }
        if let Some(given) = self.lease_for(terms, hand_over) {
            return Some(given);
        }
        if !self.may_ask(terms.mode, kind) {
            return None;
        }
        self.head = Some(Head {
            mode: terms.mode,
            stage: Stage::Asking,
        });
        Some(Given::HeadPermit)
    }

    /// Gives a lease that has no guard, or a shared one that has some, to a further guard.
    fn lease_for(&mut self, terms: LeaseTerms, hand_over: &HandOver) -> Option<Given> {
        // The head came before. It waits for a permit of other processes while those of this process pass
        // from guard to guard, within the bounds of hand-overs.
        if self.head.as_ref().is_some_and(|it| !it.mode.is_permit()) {
            return None;
        }
        for held in self.holds.iter_mut() {
            let mode = held.hold.mode;
            let has_room = held.guards == 0 || (terms.mode, mode) == (Mode::Shared, Mode::Shared);
            if has_room && let Some(number) = hand_over(&held.hold, terms) {
                held.guards += 1;
                return Some(Given::Hold(Arc::clone(&held.hold), number));
            }
        }
        None
    }

    /// Returns whether a thread may ask the store now. It may beside leases of this process that do not
    /// exclude the new one; and exclusively while guards of this process share the name, since the order of
    /// all processes is that of their requests.
    fn may_ask(&self, mode: Mode, kind: WaitKind) -> bool {
        let mut holds = self.holds.iter();
        self.head.is_none()
            && match mode {
                Mode::Exclusive if kind == WaitKind::SingleAttempt => {
                    self.releasing == 0 && self.holds.first.is_none()
                }
                Mode::Exclusive | Mode::Shared => {
                    let is_shared = |held: &Held| held.hold.mode == Mode::Shared && held.guards > 0;
                    self.releasing == 0 && holds.all(is_shared)
                }
                Mode::Permit { limit } => {
                    let used = holds.count() + self.releasing as usize;
                    used < limit as usize
                }
            }
    }

    /// Serves the waiters that can be, in their order, and ends the single attempts among those that
    /// cannot. Returns their threads, to be notified.
    pub(super) fn serve(&mut self, hand_over: &HandOver) -> Vec<Arc<Waiter>> {
        let mut served = Vec::new();
        while let Some(next) = self.waiters.front().map(Arc::clone) {
            match self.offer(next.terms, next.kind, hand_over) {
                Some(given) => next.give(given),
                None if next.kind == WaitKind::SingleAttempt && self.is_busy() => {
                    next.give(Given::Nothing(Unserved::Busy));
                }
                None => break,
            }
            self.waiters.pop_front();
            served.push(next);
        }
        if self.is_busy() {
            let is_attempt = |kind| kind == WaitKind::SingleAttempt;
            served.extend(self.end_waits(is_attempt, || Unserved::Busy));
        }
        served
    }

    /// Ends the waits of some kinds. Returns their threads, to be notified.
    pub(super) fn end_waits(
        &mut self,
        ends: impl Fn(WaitKind) -> bool,
        unserved: impl Fn() -> Unserved,
    ) -> Vec<Arc<Waiter>> {
        let ended = self
            .waiters
            .iter()
            .filter(|waiter| ends(waiter.kind))
            .cloned();
        let ended: Vec<_> = ended.collect();
        self.waiters.retain(|waiter| !ends(waiter.kind));
        for waiter in &ended {
            waiter.give(Given::Nothing(unserved()));
        }
        ended
    }

    /// Records that the store's answer to the head showed a holder.
    fn record_holder(&mut self) {
        self.holders_seen = self.holders_seen.wrapping_add(1);
        self.store_error = None;
    }

    /// Records that the store showed the head another holder.
    pub(super) fn contended(&mut self) {
        let head = self.head.as_mut();
        if let Some(head) = head.filter(|head| head.stage != Stage::Contended) {
            head.stage = Stage::Contended;
            self.record_holder();
        }
    }

    /// Records that the store did not answer the head or a release, which go on. Returns whether there is
    /// one.
    pub(super) fn fail(&mut self, error: &Error) -> bool {
        if let Some(head) = &mut self.head {
            head.stage = Stage::Failing;
        } else if self.releasing == 0 {
            return false;
        }
        self.store_error = Some(error.clone());
        true
    }

    /// Records that the head was granted `hold`, which its guard has.
    pub(super) fn granted(&mut self, hold: Arc<Hold>) {
        self.head = None;
        self.holds.push(Held {
            hold,
            guards: 1,
            until: 0,
        });
        self.record_holder();
    }

    /// Records that the head has gone without a grant.
    pub(super) fn end_head(&mut self) {
        self.head = None;
    }

    /// Records that a lease went back to the store.
    pub(super) fn released(&mut self) {
        self.releasing = self.releasing.saturating_sub(1);
        self.store_error = None;
    }

    /// Ends a guard of `hold`. Returns how many others have the lease; `None` if it was detached.
    pub(super) fn end_guard(&mut self, hold: &Arc<Hold>) -> Option<u32> {
        let mut holds = self.holds.iter_mut();
        let held = holds.find(|held| held.guards > 0 && Arc::ptr_eq(&held.hold, hold))?;
        held.guards -= 1;
        Some(held.guards)
    }

    /// Has a lease without a guard linger until `until`, if no thread waits for the name.
    pub(super) fn linger(
        &mut self,
        hold: &Arc<Hold>,
        until: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        if self.head.is_some() || !self.waiters.is_empty() {
            return None;
        }
        let mut holds = self.holds.iter_mut();
        let held = holds.find(|held| Arc::ptr_eq(&held.hold, hold))?;
        held.until = until()?;
        Some(held.until)
    }

    /// Returns whether `hold` has a guard.
    pub(super) fn has_guard(&self, hold: &Arc<Hold>) -> bool {
        let mut holds = self.holds.iter();
        holds.any(|held| held.guards > 0 && Arc::ptr_eq(&held.hold, hold))
    }

    /// Begins to give `hold` back to the store.
    pub(super) fn begin_release(&mut self, hold: &Arc<Hold>) {
        let mut taken = 0;
        let is_one = |held: &Held| Arc::ptr_eq(&held.hold, hold);
        self.holds.remove(is_one, |_| taken += 1);
        self.releasing += taken;
    }

    /// Begins to give the leases back to the store that linger until `now` or less.
    pub(super) fn take_lingering(&mut self, now: u64, taken: &mut Vec<Arc<Hold>>) {
        let before = taken.len();
        let is_over = |held: &Held| held.lingers_until().is_some_and(|until| until <= now);
        self.holds.remove(is_over, |hold| taken.push(hold));
        self.releasing += (taken.len() - before) as u32;
    }

    /// Forgets a hold that is lost.
    pub(super) fn detach(&mut self, hold: &Arc<Hold>) {
        self.holds
            .remove(|held| Arc::ptr_eq(&held.hold, hold), drop);
    }
}
