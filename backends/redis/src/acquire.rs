//! Acquiring a name, and waiting for it among other processes.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant};
use lockkeeper_remote::{Backoff, Failure, senseless};
use redis::Value;

use crate::connection::Connection;
use crate::failure::{accepted, parse};
use crate::keys::Keys;
use crate::lease::{RedisLease, millis};
use crate::owner::owner;
use crate::scripts::{ACQUIRE, RELEASE};
use crate::store::Store;
use crate::subscriber::Waiter;

/// The longest time until the next attempt of a waiter that is not woken.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
/// The same for the second waiter: the first one may be stopped.
const SECOND_ATTEMPT_EVERY: Duration = Duration::from_millis(100);
/// The time for a waiter's attempt when less is left: some round trips of a busy machine. If it were cut
/// off, a wait that was busy all along would end as unknown.
const MIN_ATTEMPT_TIME: Duration = Duration::from_millis(500);
/// The first pause between the requests of one attempt, and the longest.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The reply to an attempt.
enum Attempt {
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
struct Acquisition<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest<'a>,
    keys: Keys,
    owner: String,
    ttl: String,
    /// Whether the server may have granted the name in an attempt that failed.
    may_be_granted: Cell<bool>,
}

pub(crate) fn acquire(
    store: &Arc<Store>,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<RedisLease>>, Error> {
    let acquisition = Acquisition {
        store,
        request,
        keys: store.keys(request.name()),
        owner: owner(request),
        ttl: millis(request.ttl()).to_string(),
        may_be_granted: Cell::new(false),
    };
    let granted = match request.deadline() {
        None => acquisition.single_attempt(),
        Some(deadline) => acquisition.wait(deadline),
    };
    let granted = granted.map_err(Failure::into_error)?;
    Ok(granted.map(|(epoch, asked_at)| Grant {
        lease: RedisLease {
            keys: acquisition.keys,
            owner: acquisition.owner,
        },
        epoch,
        asked_at,
    }))
}

type Granted = Option<(u64, HostInstant)>;

impl Acquisition<'_> {
    fn single_attempt(&self) -> Result<Granted, Failure> {
        let until = self.request.now() + self.store.attempt();
        Ok(match self.attempt(&[], until)? {
            Attempt::Granted { epoch, asked_at } => Some((epoch, asked_at)),
            Attempt::Busy { .. } => {
                self.request.contended();
                None
            }
        })
    }

    fn wait(&self, deadline: HostInstant) -> Result<Granted, Failure> {
        let listener = &self.store.listener;
        let waiter = listener.enter();
        let unparker = waiter.parker.unparker().clone();
        let cancel = self.request.cancel();
        let _wake = cancel.map(|cancel| cancel.on_cancel(move || unparker.unpark()));
        let mut entry = QueueEntry {
            acquisition: self,
            waiter: &waiter,
            is_queued: false,
        };
        // A waiter queues only when messages reach it.
        let mut joins_queue = false;
        let mut was_busy = false;
        loop {
            joins_queue |= listener.is_listening();
            if self.request.is_cancelled() {
                return Ok(None);
            }
            let now = self.request.now();
            let is_last = was_busy && now >= deadline;
            let state = match (is_last, entry.is_queued) {
                (true, _) => "last",
                (false, true) => "queued",
                (false, false) => "new",
            };
            entry.is_queued |= joins_queue;
            let in_queue: &[&str] = if joins_queue {
                &[&waiter.name, state]
            } else {
                &[]
            };
            let until = deadline.max(now + MIN_ATTEMPT_TIME);
            let (ends, before) = match self.repeat_attempt(&waiter, in_queue, until, was_busy) {
                Ok(Attempt::Granted { epoch, asked_at }) => {
                    // A request without a reply may have queued after a later one was granted.
                    entry.is_queued &= self.is_repeated();
                    return Ok(Some((epoch, asked_at)));
                }
                Ok(Attempt::Busy { ends, before }) => (ends, before),
                Err(failure) => {
                    // A server that does not reply gets no request to remove the waiter, which expires
                    // by itself. After a cancel it does: only one reply may have been lost.
                    entry.is_queued &= match failure {
                        Failure::NotSent(_) | Failure::Closed(_) => false,
                        Failure::Unanswered(_) => self.request.is_cancelled(),
                        Failure::Refused(_) => true,
                    };
                    return Err(failure);
                }
            };
            self.request.contended();
            was_busy = true;
            if is_last {
                entry.is_queued = false;
                return Ok(None);
            }
            if !joins_queue && !listener.is_about_to_listen(self.store) {
                joins_queue = true;
                continue;
            }
            let now = self.request.now();
            let mut until = now + next_attempt(before);
            if let Some(ends) = ends {
                until = until.min(now + ends);
            }
            let pause = until.min(deadline).saturating_since(now);
            waiter.parker.park_timeout(pause);
        }
    }

    /// Makes an attempt, and repeats it after a lost reply, and where a server that said busy may be
    /// back soon.
    ///
    /// The engine repeats what fails, too, but on its way there the waiter would leave the queue and
    /// lose its position.
    fn repeat_attempt(
        &self,
        waiter: &Waiter,
        in_queue: &[&str],
        until: HostInstant,
        was_busy: bool,
    ) -> Result<Attempt, Failure> {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        // The first retry follows at once.
        let mut pause = Duration::ZERO;
        loop {
            let failure = match self.attempt(in_queue, until) {
                Err(failure) => failure,
                answer => return answer,
            };
            if !failure.error().is_retryable() || !(was_busy || self.may_be_granted.get()) {
                return Err(failure);
            }
            let left = until.saturating_since(self.request.now());
            waiter.parker.park_timeout(pause.min(left));
            // An attempt without time would only report that.
            if self.request.is_cancelled() || self.request.now() >= until {
                return Err(failure);
            }
            pause = backoff.next_pause();
        }
    }

    /// Returns whether an earlier request of this owner may have been granted.
    fn is_repeated(&self) -> bool {
        self.may_be_granted.get() || self.request.is_retry()
    }

    /// Tries to take the name once. `in_queue` has the waiter and its state, if it queues.
    fn attempt(&self, in_queue: &[&str], until: HostInstant) -> Result<Attempt, Failure> {
        let result = self.store.with_connection(until, |connection, limit| {
            let (answer, asked_at) = self.request_in_time(connection, in_queue, limit)?;
            if matches!(answer, Value::BulkString(_)) {
                self.await_replicas(connection, asked_at, limit)?;
            }
            Ok((answer, asked_at))
        });
        let attempt = result.and_then(|(answer, asked_at)| self.read(accepted(answer)?, asked_at));
        attempt.map_err(|failure| match failure {
            Failure::Unanswered(_) => {
                self.may_be_granted.set(true);
                failure
            }
            Failure::NotSent(error) | Failure::Closed(error) if self.may_be_granted.get() => {
                unknown(error)
            }
            // Other refusals say what is to be changed.
            Failure::Refused(error)
                if self.may_be_granted.get() && error.kind() == ErrorKind::Unavailable =>
            {
                unknown(error)
            }
            failure => failure,
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
            let mut args = vec![latest.as_str(), &self.owner, &self.ttl];
            args.extend(in_queue);
            match ACQUIRE.run(connection, &self.keys.all(), &args, limit)? {
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
            let keys = [self.keys.lock.as_str(), &self.keys.queue];
            let released = RELEASE.run(connection, &keys, &[&self.owner], limit);
            let released = released.and_then(accepted);
            released.map_err(|failure| unknown(failure.into_error()))?;
        }
        self.may_be_granted.set(may_be_granted);
        refusal.map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }

    fn read(&self, answer: Value, asked_at: HostInstant) -> Result<Attempt, Failure> {
        if matches!(answer, Value::BulkString(_)) {
            let epoch: i64 = parse(answer).map_err(Failure::Refused)?;
            if !self.is_repeated() {
                // The epoch is the server's time.
                self.store.server_clock.update(epoch, asked_at);
            }
            return match u64::try_from(epoch) {
                Ok(epoch @ 1..) => Ok(Attempt::Granted { epoch, asked_at }),
                _ => Err(Failure::Refused(senseless())),
            };
        }
        let (ends, before): (i64, i64) = parse(answer).map_err(Failure::Refused)?;
        self.may_be_granted.set(false);
        Ok(Attempt::Busy {
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

/// An entry in the wait queue of a name, removed on every way out.
struct QueueEntry<'a> {
    acquisition: &'a Acquisition<'a>,
    waiter: &'a Waiter,
    is_queued: bool,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if self.is_queued {
            let Acquisition { store, keys, .. } = self.acquisition;
            store.leave(keys, &self.waiter.name);
        }
    }
}

/// Returns the time until the next attempt of a waiter that is not woken, different for each.
fn next_attempt(before: i64) -> Duration {
    let longest = if before == 1 {
        SECOND_ATTEMPT_EVERY
    } else {
        ATTEMPT_EVERY
    };
    longest.mul_f64(0.8 + fastrand::f64() / 5.0)
}
