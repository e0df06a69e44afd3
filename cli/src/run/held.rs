//! The lock that `run` holds: the wait for its claims, its deadlines, and its release.

use std::io;
use std::time::Duration;

use crossbeam_channel::Receiver;
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{LeasePolicy, Released};
use rustix::process::Signal;

use super::command;
use super::guard::{Guard, Request};
use super::plan::{Deadlines, Plan};
use super::poll::POLL_INTERVAL;
use super::signals::{Event, asks_for_end, end_signal};
use super::stderr;
use super::watchdog::Watchdog;
use crate::output;

/// The shortest time for which a claim of another process is respected. After it, a wait for processes is reported.
pub(super) const REPORT_AFTER: Duration = Duration::from_secs(2);

/// A lock that is held, and what happens meanwhile.
pub(super) struct HeldLock {
    pub(super) request: Request,
    pub(super) guard: Guard,
    pub(super) plan: Plan,
    pub(super) granted: HostInstant,
    pub(super) events: Receiver<Event>,
}

/// How the wait for the claims ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimWait {
    /// The watchdog holds its claims, or another process has held one for longer than it could have
    /// held the lock.
    Over,
    /// A signal asked this process to end.
    Signal(Signal),
    /// The lock is lost, or no time is left for a command.
    Lost,
}

impl HeldLock {
    /// Returns the deadlines of the lock as it is now, or `None` if it is lost.
    pub(super) fn deadlines(&self) -> Option<Deadlines> {
        // The time first: if this process is stopped in between, the deadlines must not get later.
        let now = SystemClock.now();
        let remaining = self.guard.remaining();
        (!remaining.is_zero()).then(|| self.plan.deadlines(now + remaining))
    }

    /// Returns the deadlines of the lock, or `None` if it leaves no time for a command.
    pub(super) fn deadlines_to_start(&self) -> Option<Deadlines> {
        self.deadlines()
            .filter(|deadlines| SystemClock.now() < deadlines.term)
    }

    /// Returns the `max_hold` of the lock if the last renewal that it permits leads to `deadlines`: no
    /// later renewal was due.
    pub(super) fn ending_max_hold(&self, deadlines: Deadlines) -> Option<Duration> {
        let end = deadlines.term.min(deadlines.claim);
        let is_last = |max_hold: &Duration| end >= self.granted + *max_hold;
        self.plan.max_hold.filter(is_last)
    }

    /// Waits until the watchdog holds its claims, before the command starts.
    pub(super) fn wait_for_claims(&self, watchdog: &mut Watchdog) -> io::Result<ClaimWait> {
        let bound = match self.plan.policy {
            LeasePolicy::Renewed { ttl } => ttl,
            // The other half is left for the command.
            LeasePolicy::Fixed { ttl } => ttl / 2,
        };
        // Polls are counted, not time, which would run on while the host is suspended.
        let mut waited = Duration::ZERO;
        let mut sent = None;
        loop {
            let Some(deadlines) = self.deadlines_to_start() else {
                return Ok(ClaimWait::Lost);
            };
            // Not at every poll: a stopped watchdog does not read, and would let the pipe fill.
            if sent.is_none_or(|sent| deadlines.claim.saturating_since(sent) > POLL_INTERVAL) {
                sent = Some(deadlines.claim);
                watchdog.send_deadlines(deadlines)?;
            }
            let is_ready = watchdog.wait_for_claims(POLL_INTERVAL)?;
            if let Some(signal) = end_signal(&self.events, Duration::ZERO) {
                return Ok(ClaimWait::Signal(signal));
            }
            if is_ready || waited >= bound.max(REPORT_AFTER) {
                return Ok(ClaimWait::Over);
            }
            waited += POLL_INTERVAL;
            if waited == REPORT_AFTER {
                stderr::info(&format!(
                    "an earlier command under {} has not ended yet: waiting for its end",
                    self.request.names()
                ));
            }
        }
    }

    /// Keeps the lock until `until`, or until a signal asks for an end. Returns whether the lock was
    /// held all the time.
    pub(super) fn keep_until(&self, until: HostInstant) -> bool {
        let left = || until.saturating_since(SystemClock.now());
        if !left().is_zero() {
            let (names, span) = (self.request.names(), output::format_span(left()));
            stderr::info(&format!("keeping {names} for {span}"));
        }
        while !left().is_zero() {
            if !self.guard.is_held() {
                return false;
            }
            // The command and the watchdog have ended, so every child that ends now is an orphan.
            command::reap_orphans(&[]);
            // An error is a time-out: the keeper's observer is a sender as long as the lock is held.
            if let Ok(Event::Signal(signal)) = self.events.recv_timeout(left())
                && asks_for_end(signal)
            {
                return true;
            }
        }
        true
    }

    /// Releases the lock. Returns what the release found, or `None` if the store did not reply.
    pub(super) fn release(self) -> Option<Released> {
        let released = self.guard.release();
        match &released {
            Ok(_) => stderr::info(&format!("released {}", self.request.names())),
            Err(error) => stderr::warn(&format!("{error}; the store frees the lock after its ttl")),
        }
        released.ok()
    }
}
