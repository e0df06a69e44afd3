//! One attempt to acquire a name.

use std::cell::Cell;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use redis::Value;

use crate::connection::Connection;
use crate::failure::{accepted, parse};
use crate::lease::{RedisLease, millis};
use crate::owner::owner;
use crate::scripts::{ACQUIRE, RELEASE};
use crate::server_clock::epoch;
use crate::store::Store;

/// The reply to an attempt.
pub(crate) enum Answer {
    Granted {
        epoch: u64,
        asked_at: HostInstant,
    },
    Busy {
        /// The time until the holder's lease ends, if it has an end.
        ends: Option<Duration>,
        /// The number of waiters before this one.
        before: i64,
    },
}

/// One request, in the form that every attempt needs.
pub(crate) struct Acquisition<'a> {
    pub(crate) store: &'a Store,
    pub(crate) request: &'a AcquireRequest<'a>,
    /// The lease that a grant gives.
    pub(crate) lease: RedisLease,
    ttl: String,
    /// Whether the server may have granted the name in an attempt that failed.
    pub(crate) may_be_granted: Cell<bool>,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(store: &'a Store, request: &'a AcquireRequest<'a>) -> Self {
        Self {
            store,
            request,
            lease: RedisLease {
                keys: store.keys(request.name()),
                owner: owner(request),
            },
            ttl: millis(request.ttl()).to_string(),
            may_be_granted: Cell::new(false),
        }
    }

    /// Returns whether an earlier request of this owner may have been granted.
    pub(crate) fn is_repeated(&self) -> bool {
        self.may_be_granted.get() || self.request.is_retry()
    }

    /// Tries to take the name once. `in_queue` has the waiter and its state, if it queues.
    pub(crate) fn attempt(&self, in_queue: &[&str], until: HostInstant) -> Result<Answer, Failure> {
        let result = self
            .store
            .with_spare_connection(until, |connection, limit| {
                if let Err(refusal) = connection.check_grace(self.request.now()) {
                    return Ok(Err(refusal));
                }
                let (answer, asked_at) = self.request_in_time(connection, in_queue, limit)?;
                if matches!(answer, Value::BulkString(_)) {
                    self.await_replicas(connection, asked_at, limit)?;
                }
                Ok(Ok((answer, asked_at)))
            });
        let attempt = result.and_then(|answer| {
            let (answer, asked_at) = answer.map_err(Failure::Refused)?;
            self.read(accepted(answer)?, asked_at)
        });
        attempt.map_err(|failure| match failure {
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

    /// Runs the script, and has the server refuse it after the caller's deadline: the network may have
    /// delayed it, and the caller may have gone. Returns the reply and the time of the request.
    fn request_in_time(
        &self,
        connection: &mut Connection,
        in_queue: &[&str],
        limit: Duration,
    ) -> Result<(Value, HostInstant), Failure> {
        let clock = &self.store.server_clock;
        for _ in 0..2 {
            let asked_at = self.request.now();
            let latest = clock.at(asked_at + limit).to_string();
            let mut args = vec![latest.as_str(), &self.lease.owner, &self.ttl];
            args.extend(in_queue);
            match ACQUIRE.run(connection, &self.lease.keys.all(), &args, limit)? {
                // The caller still waits, so the server's clock was set.
                Value::Int(now) => clock.update(now, asked_at),
                answer => return Ok((answer, asked_at)),
            }
        }
        Err(Failure::Refused(Error::new(
            ErrorKind::Unavailable,
            "the server's clock jumps; see to its time service",
        )))
    }

    /// Waits for the replicas to acknowledge a grant, and gives it back if they do not.
    fn await_replicas(
        &self,
        connection: &mut Connection,
        asked_at: HostInstant,
        limit: Duration,
    ) -> Result<(), Failure> {
        let may_be_granted = self.may_be_granted.replace(true);
        let refusal = match self.store.acknowledged(connection, asked_at, limit) {
            Ok(true) => None,
            Ok(false) => Some(self.store.few_replicas("grant, so it was given back")),
            Err(Failure::Refused(error)) => Some(error),
            // A release on a replica is none: the new primary may know of the grant.
            Err(failure) => return Err(failure),
        };
        if refusal.is_some() {
            let RedisLease { keys, owner } = &self.lease;
            let keys = [keys.lock.as_str(), &keys.queue];
            let released = RELEASE.run(connection, &keys, &[owner], limit);
            let released = released.and_then(accepted);
            released.map_err(|failure| unknown(failure.into_error()))?;
        }
        self.may_be_granted.set(may_be_granted);
        refusal.map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }

    fn read(&self, answer: Value, asked_at: HostInstant) -> Result<Answer, Failure> {
        if matches!(answer, Value::BulkString(_)) {
            let ticks: i64 = parse(answer)?;
            if !self.is_repeated() {
                // The epoch is the server's time.
                self.store.server_clock.update(ticks, asked_at);
            }
            let epoch = epoch(ticks).ok_or_else(|| Failure::Refused(senseless()))?;
            return Ok(Answer::Granted { epoch, asked_at });
        }
        let (ends, before): (i64, i64) = parse(answer)?;
        self.may_be_granted.set(false);
        Ok(Answer::Busy {
            // Negative: a key that does not expire, so it is no lease.
            ends: u64::try_from(ends)
                .ok()
                .map(|ends| Duration::from_millis(ends.saturating_add(1))),
            before,
        })
    }
}

fn unknown(cause: Error) -> Failure {
    Failure::Unanswered(
        Error::new(
            ErrorKind::Unknown,
            "no reply came to the request, and a later one failed; what the server may have granted ends with its ttl",
        )
        .with_source(cause),
    )
}
