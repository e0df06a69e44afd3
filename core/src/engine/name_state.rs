//! The state of one name in use: the thread that asks the store, the holds, and the threads that wait,
//! first come, first served.
//!
//! The modes differ only in [`NameState::may_ask`] and [`NameState::lease_for`].
//!
//! If the shared lease of its process is at the bounds of hand-overs, a reader asks the store for a second lease.
//! Otherwise single attempts would be refused, or waiting writers of other processes would be overtaken.
//!
//! A writer asks the store while other threads of its process still read. So its request gets its position among
//! the processes at once.

use std::collections::VecDeque;

use super::hold::Hold;
use super::holds::{Held, Holds};
use super::waiter::{Given, Served, Unserved, WaitKind, Waiter};
use crate::error::Error;
use crate::mode::Mode;
use crate::options::LeaseTerms;
use crate::sync::Arc;

/// Decides whether a lease serves a further guard with these terms. If so, counts a hand-over and returns
/// the guard's number. Runs under the mutex of a shard.
pub(crate) type HandOver = dyn Fn(&Hold, LeaseTerms) -> Option<u32> + Send + Sync;

pub(crate) struct NameState {
    /// The thread that asks the store.
    head: Option<Head>,
    holds: Holds,
    /// The number of leases that are being released to the store.
    releasing: u32,
    pub(super) waiters: VecDeque<Arc<Waiter>>,
    /// The error of the last attempt of a head, or of a release, that got no answer.
    pub(super) store_error: Option<Error>,
    /// The number of the store's answers to heads that showed a holder, of this process or another.
    pub(super) holders_seen: u64,
}

struct Head {
    mode: Mode,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first request has no answer yet.
    Asking,
    /// The last attempt failed, and another follows.
    Failing,
    /// The head waits in the store: another holder was seen.
    Contended,
}

/// What the caller has to do with the lease of a guard that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// Nothing: another guard has the lease.
    HandedOver,
    /// Give it back to the store, then call [`Queue::released`](super::queue::Queue::released): until then no other thread asks for
    /// it.
    Release,
    /// Give it back to the store. The name was taken from this hold before.
    Detached,
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

    /// The state of a name whose lease is being released to the store.
    pub(super) fn releasing() -> Self {
        Self {
            releasing: 1,
            ..Self::new()
        }
    }

    /// Returns whether the name has no state to keep.
    pub(super) fn is_unused(&self) -> bool {
        self.is_idle() && self.holds.is_empty()
    }

    /// Returns whether no thread waits, asks the store, or releases a lease.
    pub(super) fn is_idle(&self) -> bool {
        self.head.is_none() && self.releasing == 0 && self.waiters.is_empty()
    }

    /// Returns whether a holder is the reason why a thread cannot be served now, and not only the order
    /// of the threads.
    pub(super) fn is_busy(&self) -> bool {
        match &self.head {
            Some(head) => head.stage == Stage::Contended,
            None => self.releasing == 0 && !self.holds.is_empty(),
        }
    }

    /// Returns whether a guard has one of the leases.
    pub(super) fn is_held(&self) -> bool {
        self.holds.iter().any(|held| held.guards > 0)
    }

    /// Returns whether a lease is being released to the store.
    pub(super) fn is_releasing(&self) -> bool {
        self.releasing > 0
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
        let held = match (self.holds.iter().next(), &self.head) {
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

    /// Returns what a new thread gets at once, if it is served after the head and before all waiters.
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
        // The head came earlier. It may wait for a permit of another process. Meanwhile the permits of
        // this process go from guard to guard, within the bounds of hand-overs.
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

    /// Returns whether a thread may ask the store now. It may if the leases of this process do not exclude the new
    /// one. A writer also may while guards of this process share the name, since requests decide the order of all
    /// processes.
    fn may_ask(&self, mode: Mode, kind: WaitKind) -> bool {
        let mut holds = self.holds.iter();
        self.head.is_none()
            && match mode {
                Mode::Exclusive if kind.is_attempt() => {
                    self.releasing == 0 && self.holds.is_empty()
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

    /// Serves the waiters that can be served, in their order. Ends the single attempts among the
    /// others.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn serve(&mut self, hand_over: &HandOver, served: &mut Served) {
        if !self.waiters.is_empty() {
            self.serve_waiters(hand_over, served);
        }
    }

    fn serve_waiters(&mut self, hand_over: &HandOver, served: &mut Served) {
        while let Some(next) = self.waiters.front() {
            let (terms, kind) = (next.terms, next.kind);
            let given = match self.offer(terms, kind, hand_over) {
                Some(given) => given,
                None if kind.is_attempt() && self.is_busy() => Given::Nothing(Unserved::Busy),
                None => break,
            };
            if let Some(next) = self.waiters.pop_front() {
                served.give(next, given);
            }
        }
        if self.is_busy() {
            self.end_waits(WaitKind::is_attempt, || Unserved::Busy, served);
        }
    }

    /// Ends the waits of some kinds.
    pub(super) fn end_waits(
        &mut self,
        ends: impl Fn(WaitKind) -> bool,
        unserved: impl Fn() -> Unserved,
        served: &mut Served,
    ) {
        self.waiters.retain(|waiter| {
            if ends(waiter.kind) {
                served.give(Arc::clone(waiter), Given::Nothing(unserved()));
            }
            !ends(waiter.kind)
        });
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

    /// Records that the store did not answer the head or a release, which continues. Returns whether
    /// the others wait for that: with a head, they do not wait for a release.
    pub(super) fn fail(&mut self, is_release: bool, error: &Error) -> bool {
        match &mut self.head {
            Some(head) if !is_release => head.stage = Stage::Failing,
            None if self.releasing > 0 => {}
            _ => return false,
        }
        self.store_error = Some(error.clone());
        true
    }

    /// Records that the head was granted `hold`, which its guard has.
    pub(super) fn granted(&mut self, hold: Arc<Hold>) {
        self.head = None;
        self.holds.push(Held { hold, guards: 1 });
        self.record_holder();
    }

    /// The state of a name whose lease was resumed.
    pub(super) fn resumed(hold: Arc<Hold>) -> Self {
        let mut state = Self::new();
        state.adopt(hold);
        state
    }

    /// Adds a hold whose lease was resumed, and which is exclusive. Returns the others: only the latest of all is not lost.
    pub(super) fn adopt(&mut self, hold: Arc<Hold>) -> Vec<Arc<Hold>> {
        let others = self.holds.iter().map(|held| Arc::clone(&held.hold));
        let others = others.collect();
        self.holds.push(Held { hold, guards: 1 });
        others
    }

    /// Records that the head has gone without a grant.
    pub(super) fn end_head(&mut self) {
        self.head = None;
    }

    /// Records that the head has gone, and that what it may have been granted goes back to the store.
    pub(super) fn keep(&mut self) {
        self.head = None;
        self.releasing += 1;
    }

    /// Records that a lease went back to the store.
    pub(super) fn released(&mut self) {
        self.releasing = self.releasing.saturating_sub(1);
        self.store_error = None;
    }

    /// Ends a guard of `hold`. A lease that no other guard has goes to the next waiter that it serves,
    /// or back to the store.
    pub(super) fn finish(
        &mut self,
        hold: &Arc<Hold>,
        hand_over: &HandOver,
        served: &mut Served,
    ) -> Finished {
        let Some(index) = self.holds.position_of(hold) else {
            return Finished::Detached;
        };
        match self.holds.get_mut(index) {
            None | Some(Held { guards: 0, .. }) => return Finished::Detached,
            Some(held) => held.guards -= 1,
        }
        self.serve(hand_over, served);
        match self.holds.get_mut(index) {
            Some(held) if held.guards > 0 => Finished::HandedOver,
            _ => {
                self.holds.remove(index);
                self.releasing += 1;
                Finished::Release
            }
        }
    }

    /// Forgets a hold that is lost.
    pub(super) fn detach(&mut self, hold: &Arc<Hold>) {
        if let Some(index) = self.holds.position_of(hold) {
            self.holds.remove(index);
        }
    }
}
