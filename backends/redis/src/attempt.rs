//! One attempt to acquire a name.

use std::cell::Cell;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant, limit_mismatch};
use lockkeeper_remote::{Failure, senseless};
use redis::Value;

use crate::calls::Call;
use crate::failure::accepted;
use crate::lease::{RedisLease, millis};
use crate::owner::{self, owner};
use crate::reply::Reply;
use crate::server_clock::{epoch, last_epoch, micros};
use crate::store::Store;

/// The reply to an attempt.
pub(crate) enum Answer {
    Granted(Granted),
    Busy {
        /// The time until the first of the leases ends.
        ends: Duration,
        /// The number of waiters before this one.
        before: i64,
    },
}

/// A grant, as the server replied it.
pub(crate) struct Granted {
    /// The server's time of the epoch, in microseconds.
    minted: i64,
    slot: u32,
    epoch: u64,
    asked_at: HostInstant,
}

/// One request, in the form that every attempt needs.
pub(crate) struct Acquisition<'a> {
    pub(crate) store: &'a Store,
    pub(crate) request: &'a AcquireRequest<'a>,
    /// The lease that a grant gives, with the mode and the owner alone.
    pub(crate) lease: RedisLease,
    /// In milliseconds.
    pub(crate) ttl: String,
    /// The time of the epoch that the request proposes, in microseconds.
    pub(crate) proposed: Option<String>,
    /// Whether the server may have granted the name in an attempt that failed.
    pub(crate) may_be_granted: Cell<bool>,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(store: &'a Store, request: &'a AcquireRequest<'a>) -> Self {
        Self {
            store,
            request,
            lease: RedisLease {
                key: store.key(request.name(), request.mode()),
                text: owner(request),
            },
            ttl: millis(request.ttl()).to_string(),
            proposed: request.proposed_epoch().map(|it| micros(it).to_string()),
            may_be_granted: Cell::new(false),
        }
    }

    /// Returns whether an earlier request of this owner may have been granted.
    pub(crate) fn is_repeated(&self) -> bool {
        self.may_be_granted.get() || self.request.is_retry()
    }

    /// Tries to take the name once. `in_queue` has the waiter and its state, if it queues.
    pub(crate) fn attempt(&self, in_queue: &[&str]) -> Result<Answer, Failure> {
        let mut calls = [Call::attempt(self, in_queue, HostInstant::NEVER)];
        let (end, cancel) = (self.request.end(), self.request.cancel());
        self.store.run_calls(&mut calls, end, cancel);
        let [call] = calls;
        let (reply, asked_at) = call.into_reply();
        self.read(reply, asked_at)
    }

    /// Reads the reply to an attempt that was sent at `asked_at`.
    pub(crate) fn read(
        &self,
        reply: Result<Value, Failure>,
        asked_at: HostInstant,
    ) -> Result<Answer, Failure> {
        let answer = reply.and_then(accepted);
        let answer = answer.and_then(|answer| self.read_accepted(&answer, asked_at));
        answer.map_err(|failure| match failure {
            Failure::Unanswered(_) => {
                self.may_be_granted.set(true);
                failure
            }
            // Such a refusal says what is to be changed.
            Failure::Refused(_) if failure.error().kind() != ErrorKind::Unavailable => failure,
            _ if self.may_be_granted.get() => unknown(failure.into_error()),
            _ => failure,
        })
    }

    fn read_accepted(&self, answer: &Value, asked_at: HostInstant) -> Result<Answer, Failure> {
        let senseless = || Failure::Refused(senseless());
        match Reply::read(answer) {
            Some(Reply::Granted { minted, slot }) => {
                let proposed = self.request.proposed_epoch();
                if proposed.is_none() && !self.is_repeated() {
                    // The epoch is the server's time.
                    self.store.server_clock.update(minted, asked_at);
                }
                Ok(Answer::Granted(Granted {
                    minted,
                    slot: u32::try_from(slot).map_err(|_| senseless())?,
                    epoch: proposed.or_else(|| epoch(minted)).ok_or_else(senseless)?,
                    asked_at,
                }))
            }
            Some(Reply::Busy { ends, before }) => {
                self.may_be_granted.set(false);
                let ends = u64::try_from(ends).map_err(|_| senseless())?;
                Ok(Answer::Busy {
                    ends: Duration::from_millis(ends.saturating_add(1)),
                    before,
                })
            }
            Some(Reply::OtherLimit(held)) => {
                self.may_be_granted.set(false);
                let asked = self.request.mode().limit().ok_or_else(senseless)?;
                let held = u32::try_from(held).map_err(|_| senseless())?;
                Err(Failure::Refused(limit_mismatch(asked, held)))
            }
            Some(Reply::EpochTooSmall(last)) => {
                self.may_be_granted.set(false);
                let proposed = self.request.proposed_epoch().ok_or_else(senseless)?;
                let last = last_epoch(last).ok_or_else(senseless)?;
                Err(Failure::Refused(Error::epoch_too_small(proposed, last)))
            }
            Some(Reply::Late(_)) | None => Err(senseless()),
        }
    }

    /// Returns the grant, and starts the listener for its keeper.
    pub(crate) fn into_grant(self, granted: &Granted) -> Grant<RedisLease> {
        self.store.listener.note_grant();
        let RedisLease { key, text } = self.lease;
        Grant {
            lease: RedisLease {
                key,
                text: owner::lease(granted.minted, granted.slot, &text),
            },
            epoch: granted.epoch,
            asked_at: granted.asked_at,
            slot: granted.slot,
        }
    }
}

/// Returns the failure of an attempt that failed after another one of the same owner got no reply: that one may
/// have been granted.
pub(crate) fn unknown(cause: Error) -> Failure {
    Failure::Unanswered(
        Error::new(
            ErrorKind::Unknown,
            "no reply came to the request, and a later one failed; what the server may have granted ends with its ttl",
        )
        .with_source(cause),
    )
}
