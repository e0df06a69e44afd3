//! Outages of the store. While the store cannot be reached, one acquisition of the keeper asks it at a
//! time, and all others that wait learn from the answer.
//!
//! The first acquisition that fails becomes the prober: it repeats its request after a back-off. Others
//! park. Each attempt of the prober that fails makes the next parked acquisition the prober, so that
//! the names take turns: a failure of one name alone does not hold up the others. The first answer of
//! the store, to any thread, ends the outage, and then all parked acquisitions ask.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;
use crate::timer::MAX_SLEEP;

use super::backoff::{Limits, backoff, random};

/// The longest pause of a parked acquisition after an outage: a server that is back is not asked by all
/// of them at once.
const MAX_DELAY: Duration = Duration::from_millis(20);
/// The shortest outage whose length an error tells: the cause alone says more about a shorter one.
const MIN_TOLD: Duration = Duration::from_millis(1);

/// The outage of a keeper's store, if there is one.
pub(super) struct OutageGate {
    /// Whether there is an outage: all that is read while there is none.
    is_down: AtomicBool,
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
    since: HostInstant,
    /// The last failure.
    cause: Error,
    /// The ticket of the acquisition that asks.
    prober: u64,
    /// How often a prober has asked.
    probes: u32,
}

impl OutageGate {
    pub(super) fn new() -> Self {
        Self {
            is_down: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Records that the store has answered, whatever it said: all parked acquisitions ask again.
    pub(super) fn answered(&self) {
        if self.is_down() {
            self.set(&mut lock(&self.state), None);
        }
    }

    /// Begins or ends an outage.
    fn set(&self, state: &mut State, outage: Option<Current>) {
        self.is_down.store(outage.is_some(), Ordering::Relaxed);
        state.outage = outage;
        if state.outage.is_none() {
            state.unpark_all();
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

    /// Records that an attempt of this acquisition failed; the store did not answer since `since`.
    /// Returns whether there is an outage. A lost reply begins none unless the attempt before it failed, too
    /// (`is_repeated`): a store that is silent, or closes each connection, loses every reply.
    pub(super) fn failed(&mut self, error: &Error, since: HostInstant, is_repeated: bool) -> bool {
        let is_unavailable = error.kind() == ErrorKind::Unavailable;
        let mut state = lock(&self.gate.state);
        let Some(outage) = &mut state.outage else {
            let begins = is_unavailable || is_repeated;
            if begins {
                self.ticket = state.draw_ticket();
                let outage = Current {
                    since,
                    // Nothing was granted to those that learn of it.
                    cause: error.clone().with_kind(ErrorKind::Unavailable),
                    prober: self.ticket,
                    probes: 0,
                };
                self.gate.set(&mut state, Some(outage));
            }
            return begins;
        };
        if is_unavailable {
            outage.cause = error.clone();
        }
        if outage.prober == self.ticket {
            outage.probes = outage.probes.saturating_add(1);
            state.pass_on();
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
        if state.is_prober(self.ticket) && !state.pass_on() {
            // The next acquisition finds out by itself.
            self.gate.set(&mut state, None);
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
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::clock::{Clock, ManualClock};

    /// A prober backs off while its outage ends and another one begins with another prober.
    #[test]
    fn former_prober_ends_at_its_deadline() {
        const LIMIT: Duration = Duration::from_secs(30);
        let (gate, clock) = (OutageGate::new(), ManualClock::new());
        let gone = Error::new(ErrorKind::Unavailable, "the test's store is gone");
        let began = clock.now();
        let mut former = Rider::new(&gate);
        assert!(former.failed(&gone, began, false));
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
            gate.answered();
            let mut next = Rider::new(&gate);
            assert!(next.failed(&gone, began, false));
            clock.advance(2 * LIMIT);
            gate.unpark_all();
            let result = ended.recv_timeout(LIMIT);
            // Else the thread of a wait that does not end would keep the test from failing.
            gate.answered();
            // It may ask if it came between the two outages.
            let _ = result.expect("the wait ends");
        });
    }
}
