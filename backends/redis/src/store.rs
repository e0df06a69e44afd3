//! The parts that a provider, its leases and its listener share: the pool, and requests on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant, LockName};
use lockkeeper_remote::{Failure, Pool, pause_before_retry, senseless};
use redis::{Value, cmd};

use crate::connection::{Connection, Connector};
use crate::failure::{demoted, is_from_replica, refused};
use crate::keys::Keys;
use crate::options::RedisOptions;
use crate::scripts::{self, Effect, Script};
use crate::server_clock::ServerClock;
use crate::subscriber::WakeListener;

/// The server checks only this often whether the time of a WAIT is over.
const TICK: Duration = Duration::from_millis(100);
/// The time for a clean-up whose result no caller needs.
const CLEANUP_TIME: Duration = Duration::from_millis(250);

/// A reply, and the time at which its request was sent.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) asked_at: HostInstant,
    /// Whether an earlier request got no reply, and may have been carried out.
    pub(crate) again: bool,
}

impl Answer {
    /// Returns whether a release found the lock.
    ///
    /// # Errors
    /// [`ErrorKind::Unknown`] where the release was repeated and found nothing: the first request
    /// may have released the lock, or may have found that it was lost.
    pub(crate) fn released(&self) -> Result<bool, Error> {
        match self.value {
            Value::Int(0) if self.again => Err(Error::new(
                ErrorKind::Unknown,
                "the reply to the release did not come, and the lock was gone when it was asked for again: it was released, or it had been lost before; where that matters, have the data refuse smaller tokens",
            )),
            Value::Int(found) => Ok(found != 0),
            _ => Err(senseless()),
        }
    }
}

/// The limits of a request's retries.
pub(crate) struct Patience<'a> {
    pub(crate) until: HostInstant,
    /// Whether a failure that may pass is retried.
    pub(crate) rides_out: bool,
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
}

pub(crate) struct Store {
    pub(crate) connector: Arc<Connector>,
    pub(crate) options: RedisOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) listener: Arc<WakeListener>,
    pub(crate) server_clock: ServerClock,
    pool: Pool<Connection>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("server", &self.connector.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.listener.stop();
    }
}

impl Store {
    pub(crate) fn new(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        let connector = Arc::new(Connector::new(options)?);
        Ok(Self {
            listener: WakeListener::new(Arc::clone(&connector)),
            connector,
            options: options.clone(),
            namespace: namespace.to_owned(),
            clock,
            server_clock: ServerClock::default(),
            pool: Pool::new(options.remote.pool_size),
        })
    }

    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        Keys::new(&self.namespace, name.as_str())
    }

    /// Returns the time that a single attempt may take.
    pub(crate) fn attempt(&self) -> Duration {
        self.options.remote.attempt_time()
    }

    /// Runs a script; all of them may run twice. Tries again while there is time where an answer
    /// did not come, or where `patience` rides out what may pass.
    pub(crate) fn run(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        patience: &Patience<'_>,
    ) -> Result<Answer, Failure> {
        let mut again = false;
        let mut backoff = None;
        loop {
            let left = patience.until.saturating_since(self.clock.now());
            let failure = match self.try_once(script, keys, args, left) {
                Ok((value, asked_at)) => {
                    return Ok(Answer {
                        value,
                        asked_at,
                        again,
                    });
                }
                Err(failure) => failure,
            };
            again |= matches!(failure, Failure::Unanswered(_));
            let goes_on = failure.may_pass() && (again || patience.rides_out);
            let Patience {
                until,
                is_cancelled,
                ..
            } = *patience;
            if !goes_on || !pause_before_retry(&mut backoff, &*self.clock, until, is_cancelled) {
                return Err(settle(failure, again));
            }
        }
    }

    /// Runs a script in one attempt: the caller asks again.
    pub(crate) fn attempt_once(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        patience: &Patience<'_>,
    ) -> Result<Answer, Failure> {
        let left = patience.until.saturating_since(self.clock.now());
        let (value, asked_at) = self.try_once(script, keys, args, left)?;
        Ok(Answer {
            value,
            asked_at,
            again: false,
        })
    }

    fn try_once(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        left: Duration,
    ) -> Result<(Value, HostInstant), Failure> {
        // Set while the server may hold the grant of an attempt that fails.
        let mut is_granted = false;
        let answer = self.with_connection(left, |connection, limit| {
            let began = self.clock.now();
            if script.effect != Effect::Grants {
                let answer = evaluate(connection, script, keys, args, limit)?;
                let is_renewed = script.effect == Effect::Renews && is_renewed(&answer);
                if is_renewed && !self.acknowledged(connection, began, limit)? {
                    return Err(Failure::Refused(self.few_replicas("renewal")));
                }
                return Ok((answer, began));
            }
            let answer = self.evaluate_in_time(connection, script, keys, args, limit)?;
            if !matches!(answer, Value::BulkString(_)) {
                return Ok((answer, began));
            }
            is_granted = true;
            let refusal = match self.acknowledged(connection, began, limit) {
                Ok(true) => return Ok((answer, began)),
                Ok(false) => self.few_replicas("grant, so it was given back"),
                // A release on a replica is none: the new primary may know of the grant.
                Err(Failure::Refused(error)) => error,
                Err(failure) => return Err(failure),
            };
            let (&[lock, _, line], &[owner, ..]) = (keys, args) else {
                return Err(Failure::Refused(senseless()));
            };
            let release = evaluate(
                connection,
                &scripts::RELEASE,
                &[lock, line],
                &[owner],
                limit,
            );
            release
                .and_then(accepted)
                .map_err(|failure| unknown(failure.into_error()))?;
            is_granted = false;
            Err(Failure::Refused(refusal))
        });
        answer
            .and_then(|(answer, began)| Ok((accepted(answer)?, began)))
            .map_err(|failure| settle(failure, is_granted))
    }

    /// Runs a script that grants, and has the server refuse it after the caller's deadline: the network
    /// may have delayed it, and the caller may have gone.
    fn evaluate_in_time(
        &self,
        connection: &mut Connection,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        limit: Duration,
    ) -> Result<Value, Failure> {
        for _ in 0..2 {
            let asked_at = self.clock.now();
            let latest = self.server_clock.at(asked_at + limit).to_string();
            let args: Vec<&str> = std::iter::once(latest.as_str())
                .chain(args.iter().copied())
                .collect();
            match evaluate(connection, script, keys, &args, limit)? {
                // The caller still waits, so the server's clock was set.
                Value::Int(now) => self.server_clock.update(now, asked_at),
                answer => return Ok(answer),
            }
        }
        Err(Failure::Refused(Error::new(
            ErrorKind::Unavailable,
            "the server's clock jumps; see to its time service",
        )))
    }

    /// Waits for the replicas if `replicas` asks for it, on the connection that wrote.
    pub(crate) fn acknowledged(
        &self,
        connection: &mut Connection,
        began: HostInstant,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let wanted = self.options.replicas;
        if wanted == 0 {
            return Ok(true);
        }
        let limit = limit.saturating_sub(self.clock.now().saturating_since(began));
        // Zero would wait without an end. The reply has to travel, too.
        let longest = (limit.saturating_sub(TICK) * 3 / 4).max(Duration::from_millis(1));
        let mut wait = cmd("WAIT");
        wait.arg(wanted).arg(longest.as_millis());
        let limit = limit.max(longest + 2 * TICK);
        let came = told(connection.ask(&wait.get_packed_command(), limit)?)?;
        Ok(matches!(came, Value::Int(came) if came >= i64::from(wanted)))
    }

    pub(crate) fn few_replicas(&self, what: &str) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "fewer than {} replicas acknowledged the {what} in time; see `replicas`",
                self.options.replicas
            ),
        )
    }

    /// Runs `work` on a connection of the pool: see [`PooledConn::run`](lockkeeper_remote::PooledConn::run).
    pub(crate) fn with_connection<T>(
        &self,
        left: Duration,
        mut work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let remote = &self.options.remote;
        let (mut slot, left) = match self.pool.try_checkout() {
            Some(slot) => (slot, left),
            None => {
                let began = self.clock.now();
                let slot = self.pool.checkout(left.min(remote.response_timeout));
                let slot = slot.ok_or_else(|| Failure::NotSent(self.exhausted()))?;
                let waited = self.clock.now().saturating_since(began);
                (slot, left.saturating_sub(waited))
            }
        };
        let connect = |limit| self.connector.connect(limit);
        slot.run(&*self.clock, left, connect, |connection, limit| {
            let result = work(connection, limit.min(remote.response_timeout));
            match &result {
                Err(Failure::Closed(_)) => self.listener.met_replica(),
                Ok(_) if std::mem::take(&mut connection.is_new) => self.listener.met_primary(),
                _ => {}
            }
            result
        })
    }

    fn exhausted(&self) -> Error {
        let advice = ", or find what makes the server slow";
        let server = &self.connector.server;
        server.exhausted(self.options.remote.pool_size, "", advice)
    }

    /// Removes a waiter from the list of a name. If that fails, the list expires by itself.
    pub(crate) fn leave(&self, lock: &str, line: &str, waiter: &str) {
        self.try_briefly(&scripts::LEAVE, &[lock, line], waiter);
    }

    /// Releases what may have been granted to a caller that has gone. If that fails, it ends with its
    /// ttl.
    pub(crate) fn give_back(&self, keys: &Keys, owner: &str) {
        self.try_briefly(&scripts::RELEASE, &[&keys.lock, &keys.line], owner);
    }

    fn try_briefly(&self, script: &Script, keys: &[&str], owner: &str) {
        let patience = Patience {
            until: self.clock.now() + CLEANUP_TIME,
            rides_out: false,
            is_cancelled: &|| false,
        };
        let _ = self.run(script, keys, &[owner], &patience);
    }
}

/// Keeps a failure unknown after a request that may have been carried out.
fn settle(failure: Failure, again: bool) -> Failure {
    match failure {
        Failure::NotSent(error) | Failure::Closed(error) if again => unknown(error),
        // Other refusals say what is to be changed.
        Failure::Refused(error) if again && error.kind() == ErrorKind::Unavailable => {
            unknown(error)
        }
        failure => failure,
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

fn evaluate(
    connection: &mut Connection,
    script: &Script,
    keys: &[&str],
    args: &[&str],
    limit: Duration,
) -> Result<Value, Failure> {
    let mut answer = connection.ask(&packed("EVALSHA", &script.sha, keys, args), limit)?;
    if is_no_script(&answer) {
        // New there, or forgotten by SCRIPT FLUSH or a restart. EVAL loads it, too.
        answer = connection.ask(&packed("EVAL", &script.code, keys, args), limit)?;
    }
    from_primary(answer)
}

pub(crate) fn is_renewed(answer: &Value) -> bool {
    matches!(answer, Value::Int(1..))
}

pub(crate) fn packed(command: &str, script: &str, keys: &[&str], args: &[&str]) -> Vec<u8> {
    let mut command = cmd(command);
    command.arg(script).arg(keys.len()).arg(keys).arg(args);
    command.get_packed_command()
}

pub(crate) fn is_no_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Returns a reply that is no error.
pub(crate) fn accepted(answer: Value) -> Result<Value, Failure> {
    match answer {
        Value::ServerError(error) => Err(Failure::Refused(refused(&error))),
        answer => Ok(answer),
    }
}

/// Returns a reply that does not come from a replica. The server was a primary at opening, and its
/// address may soon lead to the new one.
pub(crate) fn from_primary(answer: Value) -> Result<Value, Failure> {
    match answer {
        Value::ServerError(error) if is_from_replica(&error) => {
            Err(Failure::Closed(demoted(&error)))
        }
        answer => Ok(answer),
    }
}

/// Returns a reply of a primary that is no error.
pub(crate) fn told(answer: Value) -> Result<Value, Failure> {
    from_primary(answer).and_then(accepted)
}
