//! Ending several guards together: leases that no thread of this process waits for go back in one batch.
//!
//! They end in the reverse order of their names. A thread that waits for the first name goes on to the others, and
//! these are free then.
//!
//! A thread of the keeper sends the batch in any case: a drop leaves it after 80 ms, and a provider may take
//! longer.

use std::sync::Arc;

use crate::clock::HostInstant;
use crate::contract::provider::{ErasedLease, Released};
use crate::error::Error;

use super::exchange::{LeaseAsk, LeaseVerb};
use super::hold::acquired::Acquired;
use super::hold::dropped::Ending;
use super::hold::lease::Ended;
use super::release_lease::{ReleaseAttempt, release_deadline};
use super::{DROP_LIMIT, Engine};

/// A guard that has ended in this process, and its release.
struct EndedGuard<'a> {
    acquired: &'a Acquired,
    ending: Ending,
    ended: Ended,
    /// `None` if the guard's thread does not ask the store, or a renewal has the lease.
    attempt: Option<ReleaseAttempt>,
}

impl<'a> EndedGuard<'a> {
    fn new(acquired: &'a Acquired, (ending, ended): (Ending, Ended)) -> Self {
        Self {
            acquired,
            ending,
            ended,
            attempt: None,
        }
    }
}

impl Engine {
    /// Ends guards of one acquisition whose holder waits for the store's answers. Returns what was found of those
    /// that went back to the store.
    pub(crate) fn release_all(self: &Arc<Self>, all: &[Acquired]) -> Vec<Result<Released, Error>> {
        if !self.may_travel(all) {
            return all
                .iter()
                .rev()
                .map(|acquired| self.release(acquired))
                .collect();
        }
        let now = self.clock.now();
        let end = |acquired| Some(EndedGuard::new(acquired, self.end_guard(acquired, now)?));
        let mut guards: Vec<_> = all.iter().rev().filter_map(end).collect();
        let Some(first) = guards.first() else {
            return Vec::new();
        };
        let deadline = release_deadline(&first.acquired.hold, now);
        self.attempt_releases(&mut guards, (now, deadline), |guard| {
            guard.ended.lease.take()
        });
        // The names that the store has freed do not wait for the other ones.
        let is_answered =
            |it: &EndedGuard<'_>| matches!(it.attempt, Some(ReleaseAttempt::Answered(_)));
        let (answered, others): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_answered);
        let guards = answered.into_iter().chain(others);
        let conclude = |guard: EndedGuard<'_>| {
            let hold = &guard.acquired.hold;
            let answer = match guard.attempt {
                Some(attempt) => self.repeat_release(hold, attempt, deadline, now),
                None => self.return_lease(hold, None, now),
            };
            self.conclude(guard.acquired, guard.ending, guard.ended.callbacks, answer)
        };
        guards.map(conclude).collect()
    }

    /// Ends guards of one acquisition that are dropped. All together wait for the store as long as one would, and
    /// until `end` at most: see [`release_dropped`](Self::release_dropped).
    pub(crate) fn release_all_dropped(self: &Arc<Self>, all: &[Acquired], end: HostInstant) {
        if !self.may_travel(all) {
            let all = all.iter().rev();
            return all.for_each(|it| self.release_dropped_until(it, end));
        }
        let now = self.clock.now();
        let until = end.min(now + DROP_LIMIT);
        let end_guard = |acquired| {
            Some(EndedGuard::new(
                acquired,
                self.end_dropped_guard(acquired, now)?,
            ))
        };
        let mut guards: Vec<_> = all.iter().rev().filter_map(end_guard).collect();
        self.attempt_releases(&mut guards, (now, until), |guard| {
            self.take_to_drop(guard.acquired, guard.ending, &mut guard.ended, now < until)
        });
        for guard in guards {
            self.finish_drop(guard.acquired, guard.ending, guard.ended, guard.attempt);
        }
    }

    /// Returns whether releases of these guards may go to the store together.
    fn may_travel(&self, all: &[Acquired]) -> bool {
        all.len() > 1 && self.capabilities.batch() > 1
    }

    /// Asks the store once, in one batch, to release the leases that `take` takes: from now until a deadline.
    fn attempt_releases<'a>(
        self: &Arc<Self>,
        guards: &mut [EndedGuard<'a>],
        (asked_at, deadline): (HostInstant, HostInstant),
        take: impl Fn(&mut EndedGuard<'a>) -> Option<ErasedLease>,
    ) {
        let asks = guards.iter_mut().filter_map(|guard| {
            let ask = LeaseAsk {
                lease: take(guard)?,
                verb: LeaseVerb::Release,
                asked_at,
                deadline,
            };
            Some((guard, ask))
        });
        let (asking, asks): (Vec<_>, Vec<_>) = asks.unzip();
        for (guard, reply) in asking.into_iter().zip(self.ask_together(asks, deadline)) {
            guard.attempt = Some(Self::release_attempt(reply, None));
        }
    }
}
