//! Which acquisitions ask the store in an outage: one at a time, and all others learn from its answer.
//!
//! The first acquisition that fails is the first to ask again, after a back-off. Others park behind it, first come,
//! first to ask. Whoever fails goes to the end, so a failure of one name alone does not hold up the others. When the
//! outage ends, all ask.
//!
//! Otherwise a server that comes up under load would get a connection attempt of every waiting thread at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};

use crate::engine::backoff::{Limits, backoff, random};
use crate::engine::timer::MAX_SLEEP;
use crate::error::Error;
use crate::sync::lock;

use super::{Health, State};

/// The longest pause of a parked acquisition after an outage: a server that is back is not asked by all
/// of them at once.
const MAX_DELAY: Duration = Duration::from_millis(20);

/// The acquisitions that wait in an outage. The first of them asks the store, or is about to.
#[derive(Default)]
pub(super) struct Turns {
    waiting: BTreeMap<u64, Unparker>,
    last_number: u64,
    /// How often the store was asked in this outage.
    probes: u32,
}

impl Turns {
    fn first(&self) -> Option<u64> {
        Some(*self.waiting.first_key_value()?.0)
    }

    /// Returns the number of an acquisition that enters behind all others.
    fn enter(&mut self, unparker: Unparker) -> u64 {
        self.last_number += 1;
        self.waiting.insert(self.last_number, unparker);
        self.last_number
    }

    /// Removes an acquisition, and wakes the next one if it was the first.
    fn leave(&mut self, number: u64) {
        let was_first = self.first() == Some(number);
        self.waiting.remove(&number);
        match self.waiting.first_key_value() {
            Some((_, next)) if was_first => next.unpark(),
            Some(_) => {}
            // The next acquisition asks at once.
            None => self.probes = 0,
        }
    }

    /// Ends the outage: all ask.
    pub(super) fn end(&mut self) {
        self.unpark_all();
        self.waiting.clear();
        self.probes = 0;
    }

    pub(super) fn unpark_all(&self) {
        self.waiting.values().for_each(Unparker::unpark);
    }
}

/// One acquisition that waits for the end of outages.
pub(in crate::engine) struct OutageWait<'a> {
    health: &'a Health,
    /// Drawn when it waits in an outage; 0 before.
    number: u64,
}

impl<'a> OutageWait<'a> {
    pub(in crate::engine) fn new(health: &'a Health) -> Self {
        Self { health, number: 0 }
    }

    /// Waits until this acquisition may ask: at once if there is no outage, after a back-off as the first, and else at
    /// the end of the outage. `retries` counts the attempts of this acquisition that have failed; after one it goes
    /// to the end.
    ///
    /// # Errors
    /// The cause of the outage, if it outlasts the limits.
    pub(in crate::engine) fn wait(
        &mut self,
        limits: &Limits<'_>,
        retries: u32,
    ) -> Result<(), Error> {
        if !self.health.is_down() {
            return Ok(());
        }
        let parker = Parker::new();
        let _wake = limits.unpark_on_cancel(&parker);
        let (mut is_parked, mut ask_at) = (false, None);
        let mut state = lock(&self.health.state);
        if state.turns.first() == Some(self.number) {
            state.turns.probes = state.turns.probes.saturating_add(1);
        }
        state.turns.leave(self.number);
        let result = loop {
            let State { outage, turns, .. } = &mut *state;
            let Some((_, cause)) = outage else {
                break Ok(());
            };
            // Behind all others; also if its outage has ended, and this is another one.
            if !turns.waiting.contains_key(&self.number) {
                self.number = turns.enter(parker.unparker().clone());
                ask_at = None;
            }
            let left = limits.left();
            if limits.is_cancelled() || (left.is_zero() && ask_at.is_none()) {
                break Err(cause.clone());
            }
            let mut limit = left.min(MAX_SLEEP);
            if turns.first() == Some(self.number) {
                let pause = backoff(retries.max(turns.probes)).min(left);
                let ask_at = *ask_at.get_or_insert_with(|| Instant::now() + pause);
                let pause = ask_at.saturating_duration_since(Instant::now());
                if left.is_zero() || pause.is_zero() {
                    break Ok(());
                }
                limit = limit.min(pause);
            } else {
                is_parked = true;
            }
            drop(state);
            parker.park_timeout(limit);
            state = lock(&self.health.state);
        };
        let is_over = state.outage.is_none();
        drop(state);
        if is_parked && is_over {
            limits.pause(MAX_DELAY.mul_f64(random()));
        }
        result
    }
}

impl Drop for OutageWait<'_> {
    fn drop(&mut self) {
        if self.number != 0 {
            lock(&self.health.state).turns.leave(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, MutexGuard};
    use std::thread;

    use super::*;
    use crate::clock::{Clock, HostInstant, ManualClock};
    use crate::engine::health::{Asked, Unanswered};
    use crate::error::ErrorKind;

    const LIMIT: Duration = Duration::from_secs(30);

    fn begin_outage(health: &Health, at: HostInstant) {
        let unanswered = Unanswered {
            error: &Error::new(ErrorKind::Unavailable, "the test's store is gone"),
            asked_at: at,
            deadline: at + LIMIT,
            asked: Asked::ForName,
        };
        health.fail(&unanswered, at, |_| {});
    }

    fn limits(clock: &ManualClock) -> Limits<'_> {
        Limits {
            clock,
            until: clock.now() + LIMIT,
            cancel: None,
        }
    }

    /// An acquisition that asks, after a failure that began an outage.
    fn first<'h>(health: &'h Health, clock: &ManualClock) -> OutageWait<'h> {
        let mut first = OutageWait::new(health);
        first.wait(&limits(clock), 0).unwrap();
        assert_eq!(lock(&health.state).turns.first(), Some(first.number));
        first
    }

    fn wait_until_waiting(health: &Health, count: usize) {
        while lock(&health.state).turns.waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn acquisition_behind_the_end_of_the_last_one_asks() {
        let (health, clock) = (Health::new(), ManualClock::new());
        begin_outage(&health, clock.now());
        drop(first(&health, &clock));
        drop(first(&health, &clock));
        assert!(health.is_down());
    }

    /// Else they would notice it within a second, when they check the clock.
    #[test]
    fn next_acquisition_is_woken_and_so_are_all_at_the_end_of_the_outage() {
        let (health, clock) = (Health::new(), ManualClock::new());
        begin_outage(&health, clock.now());
        let asks = first(&health, &clock);
        let parkers = [Parker::new(), Parker::new()];
        for parker in &parkers {
            let unparker = parker.unparker().clone();
            lock(&health.state).turns.enter(unparker);
        }
        let is_woken = |parker: &Parker| {
            let began = Instant::now();
            parker.park_timeout(LIMIT);
            began.elapsed() < LIMIT
        };
        let [next, last] = &parkers;
        drop(asks);
        assert!(is_woken(next));
        assert!(health.recover(clock.now(), || {}));
        assert!(is_woken(next) && is_woken(last));
        assert!(lock(&health.state).turns.waiting.is_empty());
    }

    #[test]
    fn acquisition_that_has_asked_goes_behind_those_that_wait() {
        let (health, clock, asked) = (Health::new(), ManualClock::new(), Mutex::default());
        let began = clock.now();
        begin_outage(&health, began);
        let asks = first(&health, &clock);
        let ask = |name: &'static str, mut waits: OutageWait<'_>| {
            while waits.wait(&limits(&clock), 0).is_ok() && health.is_down() {
                let mut asked: MutexGuard<'_, Vec<_>> = lock(&asked);
                asked.push(name);
                if asked.len() == 12 {
                    assert!(health.recover(began, || {}));
                }
            }
        };
        thread::scope(|scope| {
            for (number, name) in ["second", "third"].into_iter().enumerate() {
                let (ask, health) = (&ask, &health);
                scope.spawn(move || ask(name, OutageWait::new(health)));
                wait_until_waiting(health, number + 2);
            }
            ask("first", asks);
        });
        let turns = ["second", "third", "first"].into_iter().cycle();
        assert!(lock(&asked).iter().copied().eq(turns.take(12)), "{asked:?}");
    }

    /// An acquisition backs off while its outage ends and another one begins with another acquisition.
    #[test]
    fn acquisition_that_asked_in_an_earlier_outage_ends_at_its_deadline() {
        let (health, clock) = (Health::new(), ManualClock::new());
        let began = clock.now();
        begin_outage(&health, began);
        let mut former = first(&health, &clock);
        thread::scope(|scope| {
            let ((waits, is_waiting), (sender, ended)) = (channel(), channel());
            let (clock, former, limits) = (&clock, &mut former, limits(&clock));
            scope.spawn(move || {
                waits.send(()).unwrap();
                // After so many retries the back-off is a tenth of a second at least.
                sender.send(former.wait(&limits, 10)).unwrap();
            });
            is_waiting.recv().unwrap();
            // Time to begin; a test that is too quick sees less, and fails no more for it.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            assert!(health.recover(began, || {}));
            begin_outage(&health, began);
            let next = Parker::new().unparker().clone();
            lock(&health.state).turns.enter(next);
            clock.advance(2 * LIMIT);
            health.unpark_all();
            let result = ended.recv_timeout(LIMIT);
            // Else the thread of a wait that does not end would keep the test from failing.
            health.recover(began, || {});
            // It may ask if it came between the two outages.
            let _ = result.expect("the wait ends");
        });
    }

    #[test]
    fn parked_acquisition_that_ends_leaves_the_first_to_ask() {
        let (health, clock) = (Health::new(), ManualClock::new());
        begin_outage(&health, clock.now());
        let asks = first(&health, &clock);
        thread::scope(|scope| {
            let (health, limits) = (&health, limits(&clock));
            let parked = scope.spawn(move || OutageWait::new(health).wait(&limits, 0));
            wait_until_waiting(health, 2);
            clock.advance(2 * LIMIT);
            health.unpark_all();
            assert!(parked.join().unwrap().is_err());
        });
        assert_eq!(lock(&health.state).turns.first(), Some(asks.number));
    }
}
