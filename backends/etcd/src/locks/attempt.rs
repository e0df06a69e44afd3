//! The steps by which a request is granted, waits, or is busy.
//!
//! Attempts do not use `/v3/lock/lock`. It blocks a connection for each waiter, and has neither shared locks nor
//! permits. The server names its key, so a lost reply leaves the key of that waiter unknown.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, CancelToken, Error, ErrorKind, Grant, HostInstant, Mode};
use lockkeeper_remote::Failure;

use super::lease::EtcdLease;
use super::leases::Lease;
use super::queue::{Ahead, Turn, check_limit, turn};
use crate::connection::failure::Refusal;
use crate::store::Store;
use crate::wire::entry::Entry;
use crate::wire::keys::NameKeys;
use crate::wire::{Found, KeyValue, Seen};

/// An acquisition binds its key to a lease that was kept alive not longer ago than this, or a part of its
/// ttl. It is less than the margin by default: a grant that is older is renewed before it is relied on.
const FRESH: Duration = Duration::from_millis(500);

/// The position of a request that waits.
pub(super) struct Queued {
    pub(super) seen: Seen,
    pub(super) ahead: Ahead,
    /// The revision at which this was ahead.
    pub(super) revision: i64,
}

/// What a request was answered.
pub(super) enum Answer {
    Granted(Grant<EtcdLease>),
    Queued(Queued),
    /// It has no key, and does not wait.
    Busy,
}

/// How far a request is.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// It has no key, and the name may be free.
    Free,
    /// It is to enter the queue.
    Enter,
    /// It is to look for its turn, without writing.
    Look,
    /// It has a key, and its turn may have come.
    OnTurn(Seen),
    /// It may take a permit.
    Take(Permit),
}

/// A permit that a request may take, unless a key of the name was written after the revision.
///
/// A permit is granted by the number of keys before it, which no comparison tells.
#[derive(Clone, Copy)]
pub(super) struct Permit {
    pub(super) slot: u32,
    /// The request's own key, if it has one.
    pub(super) own: Option<Seen>,
    pub(super) revision: i64,
}

/// What is to be done after a reply.
enum Step {
    Answer(Answer),
    /// Ask again, from this stage on.
    Again(Stage),
}

/// What a grant is made of.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// The lease that its key is bound to.
    pub(super) lease: Lease,
    /// The base of the epochs as it was last seen.
    pub(super) base: Option<u64>,
    /// The largest epoch of a grant before the request was sent.
    pub(super) largest_epoch: u64,
    /// The revision before the key was resumed; 0 if it is not.
    pub(super) resumed: i64,
}

/// One request, in the form that every attempt needs.
pub(super) struct Attempt<'a> {
    pub(super) store: &'a Store,
    pub(super) request: &'a AcquireRequest<'a>,
    pub(super) key: String,
    pub(super) keys: NameKeys,
    /// A request to enter the queue was sent, and the key may be there.
    pub(super) has_entered: bool,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(store: &'a Store, request: &'a AcquireRequest<'a>) -> Self {
        let keys = store.name_keys(request.name(), request.mode());
        // An attempt without a reply may have written its key, and may still do so: this one is not to write it.
        let key = match request.mode() {
            Mode::Exclusive | Mode::Permit { .. } if !request.is_retry() => {
                keys.reused(request.mode(), store.number)
            }
            _ => keys.of(request),
        };
        Self {
            store,
            request,
            key,
            keys,
            has_entered: false,
        }
    }

    /// Asks from a stage on, until the request is granted, waits, or is busy.
    pub(super) fn ask(&mut self, mut stage: Stage, until: HostInstant) -> Result<Answer, Failure> {
        loop {
            let asked = self.carry_out(stage, until);
            match asked.and_then(|asked| self.step(asked, until)) {
                Ok(Step::Answer(answer)) => return Ok(answer),
                Ok(Step::Again(next)) => stage = next,
                asked if Refusal::LeaseGone.is_in(&asked) => {}
                Err(failure) => return Err(failure),
            }
            if self.request.now() >= until {
                let text = "other requests for the name kept coming in between; ask again";
                let error = Error::new(ErrorKind::Unavailable, text);
                return Err(Failure::Refused(error));
            }
        }
    }

    /// Goes on after the reply to the first transaction, until the request is granted, waits, or is busy.
    pub(super) fn go_on(
        &mut self,
        asked: Result<Grant<EtcdLease>, Found>,
        until: HostInstant,
    ) -> Result<Answer, Failure> {
        match self.step(asked, until)? {
            Step::Answer(answer) => Ok(answer),
            Step::Again(stage) => self.ask(stage, until),
        }
    }

    /// Returns what a grant is made of, with a lease that was kept alive lately.
    pub(super) fn bind(
        &self,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Bound, Failure> {
        let ttl = self.request.ttl();
        Ok(Bound {
            lease: self.lease(ttl, FRESH.min(ttl / 16), until, cancel)?,
            base: self.store.epochs.base(),
            largest_epoch: self.store.epochs.largest(),
            resumed: 0,
        })
    }

    /// Returns the lease of a key that waits.
    pub(super) fn waiting_lease(&self, until: HostInstant) -> Result<Lease, Failure> {
        let ttl = self.store.leases.waiting_ttl();
        self.lease(ttl, ttl / 4, until, self.request.cancel())
    }

    /// Returns the lease for `ttl`, kept alive not longer ago than `age`.
    fn lease(
        &self,
        ttl: Duration,
        age: Duration,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Lease, Failure> {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let kept = self.request.now().as_nanos().saturating_sub(age);
        let kept = HostInstant::from_nanos(kept);
        self.store.leases.current(ttl, kept, until, cancel)
    }

    /// Finds the request among the keys of its name, unless it is granted.
    fn step(
        &mut self,
        asked: Result<Grant<EtcdLease>, Found>,
        until: HostInstant,
    ) -> Result<Step, Failure> {
        let Found { all, revision } = match asked {
            Ok(grant) => return Ok(Step::Answer(Answer::Granted(grant))),
            Err(found) => found,
        };
        let (mode, waits) = (self.request.mode(), self.request.deadline().is_some());
        if let Err(error) = check_limit(mode, &all) {
            // Its key is not to wait for permits that it never gets.
            if self.has_entered && self.store.forget(self.request, until).is_ok() {
                self.has_entered = false;
            }
            return Err(Failure::Refused(error));
        }
        let own = self.adopt(&all);
        let seen = own.map(|it| it.seen);
        let turn = turn(mode, &self.keys, &all, seen.map(|it| it.created));
        Ok(match (turn, own) {
            // It has no key yet. Or the key has ended: this process was stopped or cut off for long.
            (_, None) if waits => Step::Again(Stage::Enter),
            (Turn::Granted(slot), _) if mode.is_permit() => {
                let own = seen;
                Step::Again(Stage::Take(Permit {
                    slot,
                    own,
                    revision,
                }))
            }
            (Turn::Granted(_), Some(own)) => Step::Again(Stage::OnTurn(own.seen)),
            (Turn::Granted(_), None) => Step::Again(Stage::Free),
            (Turn::Waits(ahead), Some(own)) if waits => Step::Answer(Answer::Queued(Queued {
                seen: self.keep_place(own, until)?,
                ahead,
                revision,
            })),
            (Turn::Waits(_), _) => Step::Answer(Answer::Busy),
        })
    }

    /// Goes on with the key that the request has, which an earlier attempt may have written. If another request has the
    /// key that this one would write, the request gets a key of its own.
    fn adopt<'k>(&mut self, all: &'k [KeyValue]) -> Option<&'k KeyValue> {
        let is_own = |it: &&KeyValue| Entry::read(&it.value).is_of(self.request);
        let own = all.iter().find(is_own);
        match own {
            Some(own) => self.key.clone_from(&own.key),
            None if all.iter().any(|it| it.key == self.key) => {
                self.key = self.keys.of(self.request);
            }
            None => {}
        }
        own
    }
}
