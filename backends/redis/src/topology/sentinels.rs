//! Sentinels: they name the server that is the primary, and tell of fail-overs.
//!
//! One sentinel is asked, as long as its answers hold good; then the next one. An answer counts only if the
//! server's own `ROLE` says that it is a primary. A sentinel may be outdated, or name a server of another
//! deployment.
//!
//! The answers of several sentinels are not compared while locks are taken: a majority would cost the connect timeout for
//! each that is gone. `doctor` compares them.
//!
//! A message only makes the thread ask: after SUBSCRIBE no question is possible without RESP3, so each question has
//! a connection of its own. A connection of the pool knows how often the primary had moved when it was opened.
//! Otherwise a former primary that still answers as one would grant on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Backoff, Counts, Endpoint, Failure, Server, senseless};
use parking_lot::Mutex;
use redis::{Pipeline, Value, cmd, pipe};

use crate::connection::access::Access;
use crate::connection::{Connection, MoveSeen};
use crate::options::RedisOptions;
use crate::wire::failure::{accepted_by_primary, parse, sentinel_refused};

/// A sentinel publishes here when it names another server. That which leads the fail-over does so at the promotion, and
/// tells of the switch only when the other replicas follow.
const CHANNELS: [&str; 2] = ["+switch-master", "+promoted-slave"];
/// A sentinel is asked this often whether the primary has moved: a message may be lost, or the sentinel.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The answer of a sentinel serves further connections for this long, such as those of several threads that begin at the
/// same time. Each of them checks it by ROLE all the same.
const ANSWER_SERVES: Duration = Duration::from_millis(250);
/// The thread checks this often whether it is still needed.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The longest time to ask a sentinel, and to connect to the server that it names.
const FOLLOW_TIME: Duration = Duration::from_secs(2);
/// The first pause after a sentinel that does not answer, or whose answer is not believed, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The sentinels of a primary.
pub(crate) struct Sentinels {
    /// The options of the servers.
    options: RedisOptions,
    pub(crate) all: Vec<Access>,
    /// The number of the sentinel that is asked first.
    preferred: AtomicUsize,
    /// The way to the last primary that was confirmed.
    primary: Mutex<Option<Arc<Access>>>,
    /// The last answer that was confirmed, and when it came.
    answer: Mutex<Option<(Named, Instant)>>,
    /// How often another server than before was confirmed.
    moves: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

/// What a sentinel says.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) endpoint: Endpoint,
    /// How long the server has been the primary, as far as the sentinel knows.
    primary_for: Duration,
}

impl Sentinels {
    pub(crate) fn new(options: &RedisOptions, counts: &Arc<Counts>) -> Result<Self, Error> {
        let mut login = options.remote.clone();
        login.user.clone_from(&options.sentinel_user);
        login.password.clone_from(&options.sentinel_password);
        // What is asked of sentinels is not asked of the store.
        let apart = Arc::default();
        let all = options.sentinels.iter().map(|endpoint| {
            let remote = login.at(endpoint.clone());
            Access::new("Redis Sentinel", &remote, sentinel_refused, &apart)
        });
        Ok(Self {
            options: options.clone(),
            all: all.collect::<Result<_, _>>()?,
            preferred: AtomicUsize::new(0),
            primary: Mutex::new(None),
            answer: Mutex::new(None),
            moves: Arc::default(),
            counts: Arc::clone(counts),
        })
    }

    /// Returns the name of the primary among those that the sentinels watch.
    pub(crate) fn name(&self) -> &str {
        &self.options.primary
    }

    /// Connects to the primary within `limit`, and returns for how long it has been one, or somewhat less. Each
    /// sentinel that is asked gets an equal share of the time.
    pub(crate) fn connect(&self, limit: Duration) -> Result<(Connection, Duration), Error> {
        let began = Instant::now();
        let left = || limit.saturating_sub(began.elapsed());
        if let Some(known) = self.connect_as_answered(left() / 2) {
            return Ok(known);
        }
        let (mut sentinel_failure, mut primary_failure) = (None, None);
        for untried in (1..=self.all.len()).rev() {
            let Some((at, sentinel)) = self.preferred() else {
                break;
            };
            let seen = self.moves.load(Ordering::Acquire);
            let untried = u32::try_from(untried).unwrap_or(u32::MAX);
            let asked_at = Instant::now();
            match self.named_by(sentinel, left() / untried) {
                Ok(named) => match self.confirm(&named.endpoint, left() / untried, seen) {
                    Ok(connection) => {
                        let primary_for = named.primary_for;
                        *self.answer.lock() = Some((named, asked_at));
                        return Ok((connection, primary_for));
                    }
                    Err(error) => keep_first(&mut primary_failure, error),
                },
                Err(error) => keep_first(&mut sentinel_failure, error),
            }
            self.avoid(at);
        }
        // While any sentinel names a server, another sentinel that refuses this login must not end the wait for a fail-over.
        let failure = primary_failure.or(sentinel_failure);
        Err(failure.unwrap_or_else(senseless))
    }

    /// Connects to the primary by an answer that came just now. `None` if there is none, or it does not hold good.
    fn connect_as_answered(&self, limit: Duration) -> Option<(Connection, Duration)> {
        let seen = self.moves.load(Ordering::Acquire);
        let primary = self.primary.lock().clone()?;
        let (named, asked_at) = self.answer.lock().clone()?;
        let age = asked_at.elapsed();
        if age > ANSWER_SERVES || named.endpoint != primary.endpoint {
            return None;
        }
        let connection = self.confirm(&named.endpoint, limit, seen).ok();
        if connection.is_none() {
            *self.answer.lock() = None;
        }
        Some((connection?, named.primary_for))
    }

    /// Returns the sentinel that is asked first, and its number.
    fn preferred(&self) -> Option<(usize, &Access)> {
        let at = self.preferred.load(Ordering::Relaxed);
        self.all.get(at).map(|sentinel| (at, sentinel))
    }

    /// Makes the next sentinel the first one to ask, unless another thread has done so.
    fn avoid(&self, at: usize) {
        let next = (at + 1) % self.all.len().max(1);
        let order = Ordering::Relaxed;
        let _ = self.preferred.compare_exchange(at, next, order, order);
    }

    fn named_by(&self, sentinel: &Access, limit: Duration) -> Result<Named, Error> {
        let began = Instant::now();
        let mut connection = sentinel.connect(limit)?;
        let left = limit.saturating_sub(began.elapsed());
        self.ask(&mut connection, &pipe(), left)
    }

    /// Asks a sentinel for the primary, and sends `further` commands, whose replies it drops, in the same request.
    pub(crate) fn ask(
        &self,
        connection: &mut Connection,
        further: &Pipeline,
        limit: Duration,
    ) -> Result<Named, Error> {
        let name = self.name();
        let has_grace = !self.options.remote.restart_grace.is_zero();
        let mut commands = pipe();
        let question = commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME");
        question.arg(name);
        if has_grace {
            commands.cmd("SENTINEL").arg("MASTER").arg(name);
        }
        let mut packed = commands.get_packed_pipeline();
        packed.extend(further.get_packed_pipeline());
        let count = commands.len() + further.len();
        let answers = connection.exchange(&packed, count, limit);
        let answers = answers.map_err(|failure| connection.nothing_granted(failure))?;
        let mut answers = answers.into_iter();
        let mut next = || match answers.next() {
            Some(Value::ServerError(error)) => Err(sentinel_refused(&error)),
            Some(answer) => Ok(answer),
            None => Err(senseless()),
        };
        let address: Option<(String, u16)> = read(next()?)?;
        let Some((host, port)) = address else {
            let text = format!(
                "{} is a sentinel and watches no primary of the name {name:?}; check the name",
                connection.server()
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let primary_for = match has_grace {
            true => primary_for(&read(next()?)?, &host, port)?,
            false => Duration::MAX,
        };
        answers.try_for_each(|answer| match answer {
            Value::ServerError(error) => Err(sentinel_refused(&error)),
            _ => Ok(()),
        })?;
        Ok(Named {
            endpoint: Endpoint::tcp(host, port),
            primary_for,
        })
    }

    /// Connects to a server, and checks that it is a primary. `seen` is the number of moves before a sentinel named
    /// it: if another server was confirmed since, the answer may be older.
    fn confirm(
        &self,
        endpoint: &Endpoint,
        limit: Duration,
        seen: u64,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let known = self.primary.lock().clone();
        let known = known.filter(|access| access.endpoint == *endpoint);
        let access = match known {
            Some(access) => access,
            None => {
                let options = self.options.at(endpoint.clone());
                Arc::new(Access::to_server(&options, &self.counts)?)
            }
        };
        let mut connection = access.connect(limit)?;
        let left = limit.saturating_sub(began.elapsed());
        let role = role(&mut connection, left);
        let role = role.map_err(|failure| connection.nothing_granted(failure))?;
        if role != "master" {
            return Err(not_primary(&access.server, &role));
        }
        let mut primary = self.primary.lock();
        let is_same = primary.as_ref().is_some_and(|it| it.endpoint == *endpoint);
        if !is_same {
            if self.moves.load(Ordering::Acquire) != seen {
                return Err(not_primary(
                    &access.server,
                    "another one was found meanwhile",
                ));
            }
            if primary.replace(access).is_some() {
                self.moves.fetch_add(1, Ordering::AcqRel);
            }
        }
        connection.move_seen = Some(MoveSeen {
            moves: Arc::clone(&self.moves),
            seen: self.moves.load(Ordering::Acquire),
        });
        Ok(connection)
    }

    /// Follows what the sentinels say until `is_over`. Calls `on_move` after another server has become the primary.
    pub(crate) fn follow(&self, is_over: impl Fn() -> bool, on_move: impl Fn()) {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        while !is_over() {
            let Some((at, sentinel)) = self.preferred() else {
                return;
            };
            match self.follow_one(sentinel, &is_over, &on_move) {
                Ok(()) => backoff = Backoff::new(PAUSE, LONGEST_PAUSE),
                Err(_) => {
                    self.avoid(at);
                    thread::park_timeout(backoff.next_pause());
                }
            }
        }
    }

    /// Asks a sentinel, and waits until it tells of a fail-over, or until it is time to ask again.
    fn follow_one(
        &self,
        sentinel: &Access,
        is_over: impl Fn() -> bool,
        on_move: impl Fn(),
    ) -> Result<(), Error> {
        let seen = self.moves.load(Ordering::Acquire);
        let mut connection = sentinel.connect(FOLLOW_TIME)?;
        let mut subscribe = pipe();
        for channel in CHANNELS {
            subscribe.cmd("SUBSCRIBE").arg(channel);
        }
        let named = self.ask(&mut connection, &subscribe, FOLLOW_TIME)?;
        let primary = self.primary.lock().clone();
        if primary.is_none_or(|it| it.endpoint != named.endpoint) {
            self.confirm(&named.endpoint, FOLLOW_TIME, seen)?;
            on_move();
        }
        let began = Instant::now();
        while !is_over() && began.elapsed() < ASK_EVERY {
            match connection.next_message(CHECK_EVERY) {
                // Whatever the message says, the sentinel is asked.
                Ok(Some(_)) => return Ok(()),
                Ok(None) => {}
                Err(error) => return Err(connection.server().closed().with_source(error)),
            }
        }
        Ok(())
    }
}

/// Keeps the first failure, or the first one of a server that can be reached.
fn keep_first(failed: &mut Option<Error>, error: Error) {
    if failed.as_ref().is_none_or(Error::is_unreachable) {
        *failed = Some(error);
    }
}

/// Returns for how long a sentinel has known a server to be the primary, by its reply to SENTINEL MASTER.
fn primary_for(known: &HashMap<String, String>, host: &str, port: u16) -> Result<Duration, Error> {
    let get = |field: &str| known.get(field).ok_or_else(senseless);
    // Until the sentinel that leads a fail-over has ended it, this is still the former primary.
    if get("ip")? != host || *get("port")? != port.to_string() {
        return Ok(Duration::ZERO);
    }
    let millis = get("role-reported-time")?.parse();
    millis
        .map(Duration::from_millis)
        .map_err(|error| senseless().with_source(error))
}

/// Returns what a server says that it is: `master`, `slave` or `sentinel`.
fn role(connection: &mut Connection, limit: Duration) -> Result<String, Failure> {
    let answer = connection.ask(&cmd("ROLE").get_packed_command(), limit)?;
    if let Value::ServerError(error) = &answer
        && error.code() == "NOPERM"
    {
        let text = "the servers' user may not ask which server is the primary; with sentinels it needs +role, too";
        return Err(Failure::Refused(Error::new(
            ErrorKind::PermissionDenied,
            text,
        )));
    }
    let role = parse::<Vec<Value>>(accepted_by_primary(answer)?)?;
    let role = role.into_iter().next();
    parse(role.ok_or_else(|| Failure::Refused(senseless()))?)
}

fn not_primary(server: &Server, says: &str) -> Error {
    let text = format!(
        "a sentinel names {server} as the primary, which it is not ({says}); a fail-over may be under way"
    );
    Error::new(ErrorKind::Unavailable, text)
}

fn read<T: redis::FromRedisValue>(answer: Value) -> Result<T, Error> {
    parse(answer).map_err(Failure::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_as_primary_is_that_of_the_named_server() {
        let known = |port: &str, time: &str| {
            let known = [("ip", "a"), ("port", port), ("role-reported-time", time)];
            let known = known.map(|(field, value)| (field.to_owned(), value.to_owned()));
            primary_for(&known.into(), "a", 1)
        };
        assert_eq!(known("1", "2500").unwrap(), Duration::from_millis(2_500));
        // The sentinel leads a fail-over that has not ended.
        assert_eq!(known("2", "2500").unwrap(), Duration::ZERO);
        assert!(known("1", "long").is_err());
    }
}
