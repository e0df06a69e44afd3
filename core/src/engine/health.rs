//! What the replies of one part of the store say of it: it answers, it is in doubt, or it is silent, which is an outage.
//!
//! An outage begins with a refused connection or a time-out, and not if the store has replied to a later request.
//! It ends with the reply to a request that was made after it began. A request that is still pending when its
//! caller stops to wait is no news of the store. Each part of a store has its own health. With one for a whole Redis
//! Cluster, a primary that hung left 11 grants in 20 s.

pub(super) mod checks;
pub(super) mod turns;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

use checks::LeaseChecks;
use turns::Turns;

/// The shortest outage whose length an error tells: the cause alone says more about a shorter one.
const MIN_TOLD: Duration = Duration::from_millis(1);
/// A request without a reply for so long met a time-out. A shorter one met a connection that was closed, and the
/// next connection tells whether there is an outage.
const MIN_TIME_OUT: Duration = Duration::from_millis(100);
/// A request that reaches its own deadline earlier than this is pending: a busy server may take so long.
const MAX_PENDING: Duration = Duration::from_millis(500);
/// How exactly the newest answered request is known. Noting each of them would have all threads write one word.
const HEARD_STEP: Duration = Duration::from_millis(10);

const ANSWERS: u8 = 0;
const IN_DOUBT: u8 = 1;
const SILENT: u8 = 2;

/// What is known of one part of the store.
pub(super) struct Health {
    /// [`ANSWERS`], [`IN_DOUBT`] after a request without an answer, or [`SILENT`] in an outage.
    standing: AtomicU8,
    /// When the newest answered request was made, in nanoseconds.
    heard_at: AtomicU64,
    state: Mutex<State>,
    /// When the leases of the part are verified.
    pub(super) checks: LeaseChecks,
}

#[derive(Default)]
struct State {
    /// When the request failed that began the doubt or the outage. The reply to a request that was made from then on ends
    /// it. `None` while the store answers.
    failed_at: Option<HostInstant>,
    /// Since when the store cannot be reached, and the last failure.
    outage: Option<(HostInstant, Error)>,
    turns: Turns,
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

impl Health {
    pub(super) fn new() -> Self {
        Self {
            standing: AtomicU8::new(ANSWERS),
            heard_at: AtomicU64::new(0),
            state: Mutex::default(),
            checks: LeaseChecks::default(),
        }
    }

    /// Returns whether there is an outage.
    pub(super) fn is_down(&self) -> bool {
        self.standing.load(Ordering::Relaxed) == SILENT
    }

    /// Returns whether the store has not answered since a request failed.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.standing.load(Ordering::Relaxed) != ANSWERS
    }

    /// Returns since when the store cannot be reached, and why, if there is an outage.
    pub(super) fn outage(&self) -> Option<(HostInstant, Error)> {
        if !self.is_down() {
            return None;
        }
        lock(&self.state).outage.clone()
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
    /// outage. Returns whether leases are to be verified, since the store was in doubt: the server may be another one,
    /// or empty.
    #[cold]
    pub(super) fn recover(&self, asked_at: HostInstant, report_end: impl FnOnce()) -> bool {
        let mut state = lock(&self.state);
        self.heard_at
            .fetch_max(asked_at.as_nanos(), Ordering::Relaxed);
        if state.failed_at.take_if(|at| asked_at >= *at).is_none() {
            return false;
        }
        self.standing.store(ANSWERS, Ordering::SeqCst);
        if state.outage.take().is_some() {
            report_end();
            state.turns.end();
        }
        true
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
        let is_unavailable = error.kind() == ErrorKind::Unavailable;
        if let Some((_, cause)) = &mut state.outage {
            if is_unavailable {
                *cause = error.clone();
            }
            return;
        }
        let begins = match unanswered.asked {
            Asked::BesideAnswers => false,
            _ if is_unavailable || took >= MIN_TIME_OUT => true,
            Asked::ForName => state.failed_at.is_some_and(|at| asked_at >= at),
            Asked::ForLease => false,
        };
        if !begins {
            state.failed_at.get_or_insert(now);
            self.standing.store(IN_DOUBT, Ordering::SeqCst);
            return;
        }
        state.failed_at = Some(now);
        // Nothing was granted to those that learn of it.
        let cause = error.clone().with_kind(ErrorKind::Unavailable);
        state.outage = Some((asked_at, cause));
        self.standing.store(SILENT, Ordering::SeqCst);
        report_begin(asked_at);
    }

    /// Makes all acquisitions that wait for the end of an outage check the clock.
    pub(super) fn unpark_all(&self) {
        lock(&self.state).turns.unpark_all();
    }
}

/// Returns the error of an operation to which the store gave no answer for `span`. `may_be_granted`
/// says that one of its requests got no reply: nothing may have been granted or released for sure then.
pub(super) fn outlasted(cause: Error, span: Duration, may_be_granted: bool) -> Error {
    let is_told = span >= MIN_TOLD;
    let (kind, text) = match may_be_granted {
        false if is_told => {
            let text = format!(
                "the store could not be reached for the last {span:.1?}; check the store, or wait longer"
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
