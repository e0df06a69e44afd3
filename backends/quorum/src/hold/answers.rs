//! The renewals and the release of the leases that a vote has won, and what the members answer.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, ErasedLease, Error, HostInstant, Released, Renewal};

use crate::ballot::{Answer, Tally, tally};
use crate::lock;

use super::{Errors, GIVE_BACK, Hold, Job, PATIENCE, Round, Slot};

/// The time from the loss of a member's lease until it is requested again. The releases of one `unlock` reach the
/// members at different times, and the holder notices each at once. Regaining a lease in between would undo the
/// `unlock`. After a restart, a member usually grants nothing for longer than this.
const REGAINED_AFTER: Duration = Duration::from_secs(1);

/// The combined answer of the members, and their errors.
pub(crate) type Told = (Tally, Errors);

impl Hold {
    /// Begins a renewal. Returns it, and the leases to renew. The workers renew the leases that they have now when
    /// they are done with them.
    pub(crate) fn begin_renewal(
        &self,
        ttl: Duration,
        deadline: HostInstant,
    ) -> (Round, Vec<(usize, ErasedLease)>) {
        let mut state = lock(&self.state);
        state.renewal = Round {
            number: state.renewal.number + 1,
            ttl,
            deadline,
        };
        (state.renewal, state.begin())
    }

    /// Returns the members that lost the lease and are asked for one again, after a renewal proved a majority.
    pub(crate) fn begin_regaining(&self, now: HostInstant) -> Vec<usize> {
        let mut state = lock(&self.state);
        let mut members = Vec::new();
        for (member, slot) in state.slots.iter_mut().enumerate() {
            if matches!(slot, Slot::Lost(since) if now >= *since + REGAINED_AFTER) {
                *slot = Slot::Regained;
                members.push(member);
            }
        }
        members
    }

    /// Begins the release. Returns the leases to release. The workers release the leases that they have,
    /// and repeat failed releases.
    pub(crate) fn begin_release(&self) -> Vec<(usize, ErasedLease)> {
        let mut state = lock(&self.state);
        state.is_over = true;
        state.renewal.number += 1;
        let leases = state.begin();
        for at in 0..state.slots.len() {
            let answer = match state.slots.get(at) {
                Some(Slot::Away | Slot::Regained) => Answer::Pending,
                Some(Slot::Released) => Answer::Live,
                _ => Answer::Lost,
            };
            state.answer(at, answer);
        }
        leases
    }

    /// Records the answer of a member to a renewal at `now`, and takes its lease back. Returns the next
    /// request for the lease, if there is one.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        member: usize,
        now: HostInstant,
        round: Round,
        lease: ErasedLease,
        answer: Result<Renewal, Error>,
    ) -> Option<Job> {
        let mut state = lock(&self.state);
        if state.is_over {
            return Some(Job::release(self, lease, now, now + GIVE_BACK));
        }
        let is_current = round.number == state.renewal.number;
        let (slot, answer) = match answer {
            Ok(Renewal::Lost) => (Slot::Lost(now), Answer::Lost),
            _ if !is_current => return Some(Job::renew(self, state.renewal, lease)),
            Ok(Renewal::Renewed) => (Slot::Idle(lease), Answer::Live),
            Err(error) => {
                state.fail(member, error);
                (Slot::Idle(lease), Answer::Unknown)
            }
        };
        state.put(member, slot, Some(answer));
        self.changed.notify_all();
        None
    }

    /// Records the answer of a member to a release, and whether the worker repeats the release.
    pub(crate) fn released(
        &self,
        member: usize,
        answer: Result<Released, Error>,
        is_repeated: bool,
    ) {
        let mut state = lock(&self.state);
        let (slot, answer) = match answer {
            Ok(Released::Done) => (Slot::Released, Answer::Live),
            Ok(Released::AlreadyLost) => (Slot::None, Answer::Lost),
            Err(error) => {
                state.fail(member, error);
                let slot = if is_repeated { Slot::Away } else { Slot::None };
                (slot, Answer::Unknown)
            }
        };
        state.put(member, slot, Some(answer));
        self.changed.notify_all();
    }

    /// Waits for the answers to a renewal until they are decided, or until `deadline`.
    pub(crate) fn renewal(&self, clock: &dyn Clock, deadline: HostInstant) -> Told {
        self.wait(clock, |state, now| match tally(&state.answers) {
            Tally::Open if now < deadline => Err(deadline),
            told => Ok((told, state.errors.clone())),
        })
    }

    /// Waits until the answers decide the release, or until `deadline`. Then waits a little longer for the `awaited`
    /// members.
    pub(crate) fn release(
        &self,
        clock: &dyn Clock,
        deadline: HostInstant,
        awaited: &[bool],
    ) -> Told {
        self.renewal(clock, deadline);
        let until = deadline.min(clock.now() + PATIENCE);
        let told = self.wait(clock, |state, now| {
            let mut answers = state.answers.iter().zip(awaited);
            let is_open = answers.any(|(it, is_awaited)| *it == Answer::Pending && *is_awaited);
            match is_open && now < until {
                true => Err(until),
                false => Ok((tally(&state.answers), state.errors.clone())),
            }
        });
        if told.0 == Tally::Live {
            // Another release finds none.
            for slot in &mut lock(&self.state).slots {
                if matches!(slot, Slot::Released) {
                    *slot = Slot::None;
                }
            }
        }
        told
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "these are tests"
)]
mod tests {
    use lockkeeper_core::{AcquireRequest, Grant, LockName, LockProvider, SystemClock};
    use lockkeeper_local::MemoryProvider;

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    /// Grants a name at a store of its own.
    fn grant() -> Grant<ErasedLease> {
        let store: &dyn LockProvider = &MemoryProvider::new();
        let (name, clock) = (LockName::new("a").unwrap(), SystemClock);
        let request = AcquireRequest::attempt(&name, TTL, &clock);
        store.acquire(&request).unwrap().unwrap()
    }

    fn hold() -> Arc<Hold> {
        let leases = (0..3).map(|_| Some((grant().lease, 1))).collect();
        Arc::new(Hold::new(
            LockName::new("a").unwrap(),
            TTL,
            1,
            leases,
            |_| false,
        ))
    }

    fn at(millis: u64) -> HostInstant {
        HostInstant::from_nanos(millis * 1_000_000)
    }

    /// Renews the leases that the hold has, with one answer for each. Returns what the answers mean together.
    fn renew(hold: &Arc<Hold>, now: HostInstant, answers: &[Renewal]) -> Tally {
        let (round, leases) = hold.begin_renewal(TTL, HostInstant::NEVER);
        assert_eq!(leases.len(), answers.len());
        for ((member, lease), answer) in leases.into_iter().zip(answers) {
            hold.renewed(member, now, round, lease, Ok(*answer));
        }
        hold.renewal(&SystemClock, SystemClock.now()).0
    }

    #[test]
    fn release_of_a_lease_that_was_regained_too_late_proves_nothing() {
        let hold = hold();
        let answers = [Renewal::Lost, Renewal::Renewed, Renewal::Renewed];
        assert_eq!(renew(&hold, at(0), &answers), Tally::Live);
        // A later answer of the same `unlock` is not undone by then.
        assert!(hold.begin_regaining(at(999)).is_empty());
        assert_eq!(hold.begin_regaining(at(1_000)), [0]);
        let next = hold.voted(0, at(2_000), at(2_000), Ok(Some(grant())));
        assert!(next.is_some_and(|next| !Arc::ptr_eq(&next.hold, &hold)));
        // The member is asked again, after the pause.
        assert!(hold.begin_regaining(at(2_999)).is_empty());
        assert_eq!(hold.begin_regaining(at(3_000)), [0]);
        let answers = [Renewal::Renewed, Renewal::Lost];
        assert_eq!(renew(&hold, at(3_000), &answers), Tally::Lost);
    }

    #[test]
    fn members_that_lose_the_lease_one_after_the_other_are_regained() {
        let hold = hold();
        for (member, now) in [at(0), at(1_000), at(2_000)].into_iter().enumerate() {
            let mut answers = [Renewal::Renewed; 3];
            answers[member] = Renewal::Lost;
            assert_eq!(renew(&hold, now, &answers), Tally::Live);
            let now = now + REGAINED_AFTER;
            assert_eq!(hold.begin_regaining(now), [member]);
            let next = hold.voted(member, now, HostInstant::NEVER, Ok(Some(grant())));
            assert!(next.is_none());
        }
    }
}
