//! Asking for a name, and waiting for it in line with other processes.

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

/// A waiter looks after this long at the latest, whether it was woken or not.
const LOOK: Duration = Duration::from_secs(1);
/// The second in line looks after the first: it may be stopped.
const RUNNER_UP: Duration = Duration::from_millis(100);
/// What a look may take where less time is left: some round trips of a machine that is busy. Cut off,
/// a wait that was busy all along would end as unknown.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// What a look found.
enum Sight {
    Won {
        epoch: u64,
        asked_at: HostInstant,
        again: bool,
    },
    Busy {
        ends: Option<Duration>,
        before: i64,
    },
}

/// One request, as every look needs it.
struct Ask<'a> {
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
    let ask = Ask {
        store,
        request,
        keys: store.keys(request.name()),
        owner: owner(request),
        ttl: millis(request.ttl()).to_string(),
    };
    let answer = match request.deadline() {
        None => ask.attempt(),
        Some(deadline) => ask.wait(deadline),
    };
    let granted = answer.map_err(Failure::into_error)?;
    Ok(granted.map(|(epoch, asked_at)| Grant {
        lease: RedisLease {
            keys: ask.keys,
            owner: ask.owner,
        },
        epoch,
        asked_at,
    }))
}

type Granted = Option<(u64, HostInstant)>;

impl Ask<'_> {
    /// A single attempt.
    fn attempt(&self) -> Result<Granted, Failure> {
        let until = self.request.now() + self.store.attempt();
        match self.look("", "new", until, false)? {
            Sight::Won {
                epoch, asked_at, ..
            } => Ok(Some((epoch, asked_at))),
            Sight::Busy { .. } => {
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
        let mut place = Place {
            ask: self,
            waiter: &waiter,
            is_in_line: false,
        };
        // Nobody can be woken before wakes come through, so nobody stands in line before.
        let mut me = false;
        let mut told_busy = false;
        loop {
            waiter.parker.clear();
            me |= listener.is_listening();
            let now = self.request.now();
            if self.request.is_cancelled() {
                return Ok(None);
            }
            let is_last = told_busy && now >= deadline;
            let until = deadline.max(now + LAST_LOOK);
            let stands = match (is_last, place.is_in_line) {
                (true, _) => "last",
                (false, true) => "again",
                (false, false) => "new",
            };
            let name = if me { waiter.name.as_str() } else { "" };
            place.is_in_line |= me;
            let sight = self.look(name, stands, until, told_busy);
            let (ends, before) = match sight {
                Ok(Sight::Won {
                    epoch,
                    asked_at,
                    again,
                }) => {
                    // The first try may have entered the line before the second one was granted.
                    place.is_in_line &= again;
                    return Ok(Some((epoch, asked_at)));
                }
                Ok(Sight::Busy { ends, before }) => (ends, before),
                Err(failure) => {
                    // A server that does not answer is not asked to forget the place: that ends by
                    // itself. Who was cancelled tries: the server may be well, and one reply lost.
                    place.is_in_line &= match failure {
                        Failure::NotSent(_) | Failure::Closed(_) => false,
                        Failure::Unanswered(_) => self.request.is_cancelled(),
                        Failure::Refused(_) => true,
                    };
                    return Err(failure);
                }
            };
            self.request.contended();
            told_busy = true;
            if is_last {
                place.is_in_line = false;
                return Ok(None);
            }
            if !me && !listener.is_about_to_listen(self.store) {
                me = true;
                continue;
            }
            let now = self.request.now();
            let mut until = now + next_look(before);
            if let Some(ends) = ends {
                until = until.min(now + ends);
            }
            waiter
                .parker
                .park(until.min(deadline).saturating_since(now));
        }
    }

    /// One look at the name; takes it where it may.
    fn look(
        &self,
        me: &str,
        stands: &str,
        until: HostInstant,
        rides_out: bool,
    ) -> Result<Sight, Failure> {
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
        let args = [self.owner.as_str(), self.ttl.as_str(), me, stands];
        // Who does not stand in line does not say how.
        let said = if me.is_empty() { 2 } else { args.len() };
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
                    // It is the server's time.
                    self.store.server_clock.update(epoch, answer.asked_at);
                }
                Ok(Sight::Won {
                    epoch: epoch.unsigned_abs(),
                    asked_at: answer.asked_at,
                    again: answer.again,
                })
            }
            Value::Array(numbers) => match numbers.as_slice() {
                [Value::Int(ends), Value::Int(before)] => Ok(Sight::Busy {
                    // Below zero: a key without an end, which is nobody's lease.
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

/// A place in the name's line, given up on every way out.
struct Place<'a> {
    ask: &'a Ask<'a>,
    waiter: &'a Waiter,
    is_in_line: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_in_line {
            let Keys { lock, line, .. } = &self.ask.keys;
            self.ask.store.leave(lock, line, &self.waiter.name);
        }
    }
}

/// How long a waiter sleeps where nothing wakes it; never the same for two of them.
fn next_look(before: i64) -> Duration {
    let longest = if before == 1 { RUNNER_UP } else { LOOK };
    longest.mul_f64(0.8 + fastrand::f64() / 5.0)
}

pub(crate) fn millis(span: Duration) -> u64 {
    // Up, so that no lease is shorter than was asked for. The server counts in signed numbers,
    // from 1970.
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).min(1 << 52)
}

/// What the lock's key holds: who asks, for the scripts, and the same for people.
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
