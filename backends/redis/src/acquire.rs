//! Acquiring a name, and waiting for it among other processes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use redis::Value;

use crate::keys::Keys;
use crate::lease::RedisLease;
use crate::scripts;
use crate::store::{Patience, Store};
use crate::subscriber::Waiter;

/// The longest time until the next attempt of a waiter that is not woken.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
/// The same for the second waiter: the first one may be stopped.
const SECOND_ATTEMPT_EVERY: Duration = Duration::from_millis(100);
/// The time for an attempt when less is left: some round trips of a busy machine. If it were cut off, a
/// wait that was busy all along would end as unknown.
const LAST_ATTEMPT: Duration = Duration::from_millis(500);

/// The result of an attempt.
enum Attempt {
    Granted {
        epoch: u64,
        asked_at: HostInstant,
        again: bool,
    },
    Busy {
        ends: Option<Duration>,
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
    };
    let answer = match request.deadline() {
        None => acquisition.single_attempt(),
        Some(deadline) => acquisition.wait(deadline),
    };
    let granted = answer.map_err(Failure::into_error)?;
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
    /// A single attempt.
    fn single_attempt(&self) -> Result<Granted, Failure> {
        let until = self.request.now() + self.store.attempt();
        match self.attempt("", "new", until, false)? {
            Attempt::Granted {
                epoch, asked_at, ..
            } => Ok(Some((epoch, asked_at))),
            Attempt::Busy { .. } => {
                self.request.contended();
                Ok(None)
            }
        }
    }

    fn wait(&self, deadline: HostInstant) -> Result<Granted, Failure> {
        let listener = &self.store.listener;
        let waiter = listener.enter();
        let parker = Arc::clone(&waiter.parker);
        let _wake = self
            .request
            .cancel()
            .map(|cancel| cancel.on_cancel(move || parker.unpark()));
        let mut entry = QueueEntry {
            acquisition: self,
            waiter: &waiter,
            is_queued: false,
        };
        // A waiter queues only when messages reach it.
        let mut joins_queue = false;
        let mut was_busy = false;
        loop {
            waiter.parker.clear();
            joins_queue |= listener.is_listening();
            let now = self.request.now();
            if self.request.is_cancelled() {
                return Ok(None);
            }
            let is_last = was_busy && now >= deadline;
            let until = deadline.max(now + LAST_ATTEMPT);
            let state = match (is_last, entry.is_queued) {
                (true, _) => "last",
                (false, true) => "again",
                (false, false) => "new",
            };
            let name = if joins_queue {
                waiter.name.as_str()
            } else {
                ""
            };
            entry.is_queued |= joins_queue;
            let result = self.attempt(name, state, until, was_busy);
            let (ends, before) = match result {
                Ok(Attempt::Granted {
                    epoch,
                    asked_at,
                    again,
                }) => {
                    // The first try may have queued before the second one was granted.
                    entry.is_queued &= again;
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
            waiter
                .parker
                .park(until.min(deadline).saturating_since(now));
        }
    }

    /// Tries to take the name once.
    fn attempt(
        &self,
        waiter: &str,
        state: &str,
        until: HostInstant,
        rides_out: bool,
    ) -> Result<Attempt, Failure> {
        let patience = Patience {
            until,
            rides_out,
            is_cancelled: &|| self.request.is_cancelled(),
        };
        let keys = [
            self.keys.lock.as_str(),
            self.keys.epoch.as_str(),
            self.keys.line.as_str(),
        ];
        let args = [self.owner.as_str(), self.ttl.as_str(), waiter, state];
        // An attempt that does not queue has no waiter and no state.
        let said = if waiter.is_empty() { 2 } else { args.len() };
        let args = args.get(..said).unwrap_or_default();
        let mut answer = if self.request.deadline().is_none() {
            self.store
                .attempt_once(&scripts::ACQUIRE, &keys, args, &patience)?
        } else {
            self.store.run(&scripts::ACQUIRE, &keys, args, &patience)?
        };
        answer.again |= self.request.is_retry();
        match answer.value {
            Value::BulkString(epoch) => {
                let epoch = std::str::from_utf8(&epoch).ok();
                let epoch: Option<i64> = epoch.and_then(|epoch| epoch.parse().ok());
                let epoch = epoch.filter(|epoch| *epoch > 0);
                let epoch = epoch.ok_or_else(|| Failure::Refused(senseless()))?;
                if !answer.again {
                    // The epoch is the server's time.
                    self.store.server_clock.update(epoch, answer.asked_at);
                }
                Ok(Attempt::Granted {
                    epoch: epoch.unsigned_abs(),
                    asked_at: answer.asked_at,
                    again: answer.again,
                })
            }
            Value::Array(numbers) => match numbers.as_slice() {
                [Value::Int(ends), Value::Int(before)] => Ok(Attempt::Busy {
                    // Negative: a key that does not expire, so it is no lease.
                    ends: u64::try_from(*ends)
                        .ok()
                        .map(|ends| Duration::from_millis(ends.saturating_add(1))),
                    before: *before,
                }),
                _ => Err(Failure::Refused(senseless())),
            },
            _ => Err(Failure::Refused(senseless())),
        }
    }
}

/// An entry in the name's list of waiters, removed on every way out.
struct QueueEntry<'a> {
    acquisition: &'a Acquisition<'a>,
    waiter: &'a Waiter,
    is_queued: bool,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if self.is_queued {
            let Keys { lock, line, .. } = &self.acquisition.keys;
            self.acquisition.store.leave(lock, line, &self.waiter.name);
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

pub(crate) fn millis(span: Duration) -> u64 {
    // Rounded up, so that no lease is shorter than requested. The server counts in signed numbers from
    // 1970.
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).min(1 << 52)
}

/// Returns the value of the lock's key: the owner for the scripts, and the same for people.
pub(crate) fn owner(request: &AcquireRequest<'_>) -> String {
    static HOST: OnceLock<String> = OnceLock::new();
    let host = HOST.get_or_init(host);
    let owner = request.owner();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let since = owner.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(
        "{:016x}-{} host={host} pid={} thread={thread} since={}",
        owner.nonce,
        owner.request,
        owner.pid,
        since.as_millis()
    )
}

#[cfg(unix)]
fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".to_owned())
}
