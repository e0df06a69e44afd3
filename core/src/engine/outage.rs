//! Outages of one part of the store: when they begin and end, and which acquisitions ask meanwhile.
//!
//! An outage begins with a refused connection or a time-out, and not if the store has replied to a later request.
//! It ends with the reply to a request that was made after it began. A request that is still pending when its
//! caller stops to wait is no news of the store.
//!
//! In an outage, one acquisition asks at a time, and all others learn from its answer. The first one that fails
//! becomes the prober: it repeats its request after a back-off. Others park. Each failed attempt of the prober makes
//! the next parked acquisition the prober. So a failure of one name alone does not hold up the others. When the
//! outage ends, all parked acquisitions ask.
//!
//! Otherwise a server that comes up under load would get a connection attempt of every waiting thread at once. Each
//! part of a store has its own outages. With one for a whole Redis Cluster, a primary that hung left 11 grants in
//! 20 s.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};

use crate::clock::HostInstant;
use crate::engine::timer::MAX_SLEEP;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

use super::backoff::{Limits, backoff, random};

/// The longest pause of a parked acquisition after an outage: a server that is back is not asked by all
/// of them at once.
const MAX_DELAY: Duration = Duration::from_millis(20);
/// The shortest outage whose length an error tells: the cause alone says more about a shorter one.
const MIN_TOLD: Duration = Duration::from_millis(1);
/// A request without a reply for so long met a time-out. A shorter one met a connection that was closed, and the
/// next connection tells whether there is an outage.
const MIN_TIME_OUT: Duration = Duration::from_millis(100);
/// A request that reaches its own deadline earlier than this is pending: a busy server may take so long.
const MAX_PENDING: Duration = Duration::from_millis(500);
/// How exactly the newest answered request is known. Noting each of them would have all threads write one word.
const HEARD_STEP: Duration = Duration::from_millis(10);

/// What the replies of one part of the store tell of it.
pub(super) struct OutageGate {
    /// Whether there is an outage.
    is_down: AtomicBool,
    /// When the last request without an answer failed, in nanoseconds; 0 after an answer. That answer is reason to
    /// verify all leases: the server may be another one, or empty.
    failed_at: AtomicU64,
    /// When the newest answered request was made, in nanoseconds.
    heard_at: AtomicU64,
    /// Whether the last release took longer than a drop may wait.
    is_slow: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outage: Option<Current>,
    /// The acquisitions that wait for the prober, by ticket: first come, first to ask.
    parked: BTreeMap<u64, Unparker>,
    last_ticket: u64,
}

struct Current {
    /// When the request was made that began the outage.
    since: HostInstant,
    /// When that request failed.
    noticed_at: HostInstant,
    /// The last failure.
    cause: Error,
    /// The ticket of the acquisition that asks; 0 if there is none.
    prober: u64,
    /// How often a prober has asked.
    probes: u32,
}

/// A request that the store did not answer.
pub(super) struct Unanswered<'a> {
    pub(super) error: &'a Error,
    /// When it was made.
    pub(super) asked_at: HostInstant,
    /// When its caller stops to wait.
    pub(super) deadline: HostInstant,
    pub(super) asked: Asked,
}

/// What an unanswered request was about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Its reply may be lost with a connection, and so may the next one. A store that closes each connection loses
    /// all of them, which is an outage.
    ForName,
    /// The backend may know without asking that a lease gets no reply.
    ForLease,
    /// Other requests of the same batch were answered, so there is no outage.
    BesideAnswers,
}

impl OutageGate {
    pub(super) fn new() -> Self {
        Self {
            is_down: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            heard_at: AtomicU64::new(0),
            is_slow: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Returns whether the store has not answered since a request failed.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.failed_at.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a store that is asked now is likely not to answer soon.
    pub(super) fn is_silent(&self) -> bool {
        self.is_in_doubt() || self.is_slow.load(Ordering::Relaxed)
    }

    /// Notes whether the last release took longer than a drop may wait.
    pub(super) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Records the answer to a request that was made at `asked_at`, while the store is not in doubt.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn hear(&self, asked_at: HostInstant) {
        let heard_at = self.heard_at.load(Ordering::Relaxed);
        if asked_at > HostInstant::from_nanos(heard_at) + HEARD_STEP {
            self.heard_at
                .fetch_max(asked_at.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Records the answer to a request that was made at `asked_at`, and calls `report_end` if it ends an
    /// outage. Returns whether leases are to be verified, since the store was in doubt.
    #[cold]
    pub(super) fn recover(&self, asked_at: HostInstant, report_end: impl FnOnce()) -> bool {
        let mut state = lock(&self.state);
        self.heard_at
            .fetch_max(asked_at.as_nanos(), Ordering::Relaxed);
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        let is_first = failed_at != 0 && asked_at.as_nanos() >= failed_at;
        if is_first {
            self.failed_at.store(0, Ordering::SeqCst);
        }
        let is_over = |outage: &mut Current| asked_at >= outage.noticed_at;
        let has_ended = state.outage.take_if(is_over).is_some();
        if has_ended {
            self.is_down.store(false, Ordering::Relaxed);
            report_end();
            state.unpark_all();
        }
        is_first || has_ended
    }

    /// Records at `now` that the store did not answer a request, and calls `report_begin` with the beginning of an
    /// outage.
    #[cold]
    pub(super) fn fail(
        &self,
        unanswered: &Unanswered<'_>,
        now: HostInstant,
        report_begin: impl FnOnce(HostInstant),
    ) {
        let Unanswered {
            error, asked_at, ..
        } = *unanswered;
        let took = now.saturating_since(asked_at);
        let is_pending = now >= unanswered.deadline && took < MAX_PENDING;
        let mut state = lock(&self.state);
        let heard_at = HostInstant::from_nanos(self.heard_at.load(Ordering::Relaxed));
        if is_pending || heard_at > asked_at {
            return;
        }
        // 0 is no failure.
        let failed_at = self.failed_at.swap(now.as_nanos().max(1), Ordering::SeqCst);
        let is_repeated = failed_at != 0 && asked_at.as_nanos() >= failed_at;
        let is_unavailable = error.kind() == ErrorKind::Unavailable;
        let begins = match unanswered.asked {
            _ if is_unavailable || took >= MIN_TIME_OUT => true,
            Asked::ForName => is_repeated,
            Asked::ForLease | Asked::BesideAnswers => false,
        };
        match &mut state.outage {
            Some(outage) if is_unavailable => outage.cause = error.clone(),
            None if begins && unanswered.asked != Asked::BesideAnswers => {
                state.outage = Some(Current {
                    since: asked_at,
                    noticed_at: now,
                    // Nothing was granted to those that learn of it.
                    cause: error.clone().with_kind(ErrorKind::Unavailable),
                    prober: 0,
                    probes: 0,
                });
                self.is_down.store(true, Ordering::Relaxed);
                report_begin(asked_at);
            }
            _ => {}
        }
    }

    /// Makes all parked acquisitions check the clock.
    pub(super) fn unpark_all(&self) {
        lock(&self.state).unpark_all();
    }

    /// Returns since when the store cannot be reached, and why, if there is an outage.
    pub(super) fn current(&self) -> Option<(HostInstant, Error)> {
        if !self.is_down() {
            return None;
        }
        let state = lock(&self.state);
        let outage = state.outage.as_ref();
        outage.map(|outage| (outage.since, outage.cause.clone()))
    }
}

impl State {
    fn unpark_all(&self) {
        for unparker in self.parked.values() {
            unparker.unpark();
        }
    }

    fn is_prober(&self, ticket: u64) -> bool {
        let outage = self.outage.as_ref();
        outage.is_some_and(|outage| outage.prober == ticket)
    }

    fn draw_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Makes an acquisition the prober, and draws its ticket unless it is parked with one.
    fn make_prober(&mut self, ticket: &mut u64, is_parked: bool) {
        if !is_parked {
            *ticket = self.draw_ticket();
        }
        if let Some(outage) = &mut self.outage {
            outage.prober = *ticket;
        }
    }

    /// Records that the prober has failed, and makes the first parked acquisition the prober.
    fn probe_failed(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.probes = outage.probes.saturating_add(1);
        }
        self.pass_on();
    }

    /// Makes the first parked acquisition the prober. Returns whether there is one.
    fn pass_on(&mut self) -> bool {
        let (Some(outage), Some((ticket, unparker))) =
            (&mut self.outage, self.parked.first_key_value())
        else {
            return false;
        };
        outage.prober = *ticket;
        unparker.unpark();
        true
    }
}

/// One acquisition that rides outages out. It makes the next one the prober when it ends.
pub(super) struct Rider<'a> {
    gate: &'a OutageGate,
    /// Drawn when it asks or parks in an outage; 0 before.
    ticket: u64,
}

impl<'a> Rider<'a> {
    pub(super) fn new(gate: &'a OutageGate) -> Self {
        Self { gate, ticket: 0 }
    }

    /// Returns since when there is an outage.
    pub(super) fn since(&self) -> Option<HostInstant> {
        Some(self.gate.current()?.0)
    }

    /// Records that an attempt of this acquisition failed. Returns whether there is an outage.
    pub(super) fn failed(&mut self) -> bool {
        let mut state = lock(&self.gate.state);
        let Some(outage) = &state.outage else {
            return false;
        };
        if outage.prober == 0 {
            state.make_prober(&mut self.ticket, false);
        } else if outage.prober == self.ticket {
            state.probe_failed();
        }
        true
    }

    /// Waits until this acquisition may ask: at once if there is no outage, after a back-off as the
    /// prober, and else at the end of the outage. `retries` counts those of this acquisition.
    ///
    /// # Errors
    /// The cause of the outage, if it outlasts the limits.
    pub(super) fn wait(&mut self, limits: &Limits<'_>, retries: u32) -> Result<(), Error> {
        if !self.gate.is_down() {
            return Ok(());
        }
        let parker = Parker::new();
        let _wake = limits.unpark_on_cancel(&parker);
        let mut state = lock(&self.gate.state);
        let (mut is_parked, mut ask_at) = (false, None);
        let result = loop {
            if state.outage.as_ref().is_some_and(|it| it.prober == 0) {
                state.make_prober(&mut self.ticket, is_parked);
            }
            let Some(outage) = &state.outage else {
                break Ok(());
            };
            let is_prober = outage.prober == self.ticket;
            if !is_prober {
                // That outage has ended, and another one has another prober.
                ask_at = None;
            }
            let left = limits.left();
            if limits.is_cancelled() || (left.is_zero() && ask_at.is_none()) {
                break Err(outage.cause.clone());
            }
            let mut limit = left.min(MAX_SLEEP);
            if is_prober {
                let pause = backoff(retries.max(outage.probes)).min(left);
                let ask_at = *ask_at.get_or_insert_with(|| Instant::now() + pause);
                let pause = ask_at.saturating_duration_since(Instant::now());
                if left.is_zero() || pause.is_zero() {
                    break Ok(());
                }
                limit = limit.min(pause);
            } else if !is_parked {
                // Behind those that have not asked since.
                self.ticket = state.draw_ticket();
                state.parked.insert(self.ticket, parker.unparker().clone());
                is_parked = true;
            }
            drop(state);
            parker.park_timeout(limit);
            state = lock(&self.gate.state);
        };
        state.parked.remove(&self.ticket);
        let is_over = state.outage.is_none();
        drop(state);
        if is_parked && is_over {
            limits.pause(MAX_DELAY.mul_f64(random()));
        }
        result
    }
}

impl Drop for Rider<'_> {
    fn drop(&mut self) {
        if self.ticket == 0 {
            return;
        }
        let mut state = lock(&self.gate.state);
        if state.is_prober(self.ticket)
            && !state.pass_on()
            && let Some(outage) = &mut state.outage
        {
            // The next acquisition asks at once.
            (outage.prober, outage.probes) = (0, 0);
        }
    }
}

/// Returns the error of an operation to which the store gave no answer for `span`. `may_be_granted`
/// says that one of its requests got no reply: nothing may have been granted or released for sure then.
pub(super) fn outlasted(cause: Error, span: Duration, may_be_granted: bool) -> Error {
    let is_told = span >= MIN_TOLD;
    let (kind, text) = match may_be_granted {
        false if is_told => {
            let text = format!(
                "the store could not be reached for the last {span:.1?}; see to the store, or wait longer"
            );
            let error = match cause.is_unreachable() {
                true => Error::unreachable(text),
                false => Error::new(ErrorKind::Unavailable, text),
            };
            return error.with_source(cause);
        }
        true if is_told => (
            ErrorKind::Unknown,
            format!(
                "the store did not reply for the last {span:.1?}; what it may have granted expires with its ttl"
            ),
        ),
        true if cause.kind() != ErrorKind::Unknown => (
            ErrorKind::Unknown,
            "the store did not reply, and could not be asked again; what it may have granted expires with its ttl".to_owned(),
        ),
        _ => return cause,
    };
    Error::new(kind, text).with_source(cause)
}

#[cfg(test)]
mod failures;

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::clock::{Clock, ManualClock};

    const LIMIT: Duration = Duration::from_secs(30);

    fn begin_outage(gate: &OutageGate, at: HostInstant) {
        let unanswered = Unanswered {
            error: &Error::new(ErrorKind::Unavailable, "the test's store is gone"),
            asked_at: at,
            deadline: at + LIMIT,
            asked: Asked::ForName,
        };
        gate.fail(&unanswered, at, |_| {});
    }

    fn limits(clock: &ManualClock) -> Limits<'_> {
        Limits {
            clock,
            until: clock.now() + LIMIT,
            cancel: None,
        }
    }

    #[test]
    fn acquisition_behind_the_end_of_the_last_prober_asks() {
        let (gate, clock) = (OutageGate::new(), ManualClock::new());
        begin_outage(&gate, clock.now());
        let mut prober = Rider::new(&gate);
        assert!(prober.failed());
        drop(prober);
        thread::scope(|scope| {
            let (sender, ended) = channel();
            let (gate, clock) = (&gate, &clock);
            scope.spawn(move || {
                let waited = Rider::new(gate).wait(&limits(clock), 0);
                sender.send(waited).unwrap();
            });
            let waited = ended.recv_timeout(LIMIT);
            clock.advance(LIMIT);
            waited.expect("the wait ends").unwrap();
        });
        assert!(gate.is_down());
    }

    #[test]
    fn former_prober_asks_behind_those_that_wait() {
        let (gate, clock, asked) = (OutageGate::new(), ManualClock::new(), Mutex::default());
        let began = clock.now();
        begin_outage(&gate, began);
        let mut first = Rider::new(&gate);
        assert!(first.failed());
        let ask = |name: &'static str, mut rider: Rider<'_>| {
            while rider.wait(&limits(&clock), 0).is_ok() && gate.is_down() {
                let mut asked: MutexGuard<'_, Vec<_>> = lock(&asked);
                asked.push(name);
                if asked.len() == 12 {
                    assert!(gate.recover(began, || {}));
                }
                drop(asked);
                rider.failed();
            }
        };
        thread::scope(|scope| {
            for (number, name) in ["second", "third"].into_iter().enumerate() {
                let (ask, gate) = (&ask, &gate);
                scope.spawn(move || ask(name, Rider::new(gate)));
                while lock(&gate.state).parked.len() <= number {
                    thread::yield_now();
                }
            }
            first.failed();
            ask("first", first);
        });
        let asked = lock(&asked);
        assert!(asked.contains(&"third"), "{asked:?}");
    }

    /// A prober backs off while its outage ends and another one begins with another prober.
    #[test]
    fn former_prober_ends_at_its_deadline() {
        let (gate, clock) = (OutageGate::new(), ManualClock::new());
        let began = clock.now();
        let fail = || begin_outage(&gate, began);
        fail();
        let mut former = Rider::new(&gate);
        assert!(former.failed());
        thread::scope(|scope| {
            let ((waits, is_waiting), (sender, ended)) = (channel(), channel());
            let (clock, former) = (&clock, &mut former);
            scope.spawn(move || {
                let limits = Limits {
                    clock,
                    until: began + LIMIT,
                    cancel: None,
                };
                waits.send(()).unwrap();
                // After so many retries the back-off is a tenth of a second at least.
                sender.send(former.wait(&limits, 10)).unwrap();
            });
            is_waiting.recv().unwrap();
            // Time to begin; a test that is too quick sees less, and fails no more for it.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            assert!(gate.recover(began, || {}));
            fail();
            let mut next = Rider::new(&gate);
            assert!(next.failed());
            clock.advance(2 * LIMIT);
            gate.unpark_all();
            let result = ended.recv_timeout(LIMIT);
            // Else the thread of a wait that does not end would keep the test from failing.
            gate.recover(began, || {});
            // It may ask if it came between the two outages.
            let _ = result.expect("the wait ends");
        });
    }
}
