//! Requests for locks that travel together: one pipeline on one connection, and an answer for each.

use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use redis::Value;

use crate::attempt::{Acquisition, unknown};
use crate::bucket_keys;
use crate::connection::Connection;
use crate::failure::{accepted, from_primary};
use crate::lease::RedisLease;
use crate::reply::Reply;
use crate::script::{Script, is_no_script};
use crate::scripts::{ACQUIRE, PROPOSE, RELEASE, RENEW};
use crate::store::Store;

/// A request for one lock.
pub(crate) struct Call<'a> {
    lease: &'a RedisLease,
    verb: Verb<'a>,
    state: State,
    /// When it was sent last.
    asked_at: HostInstant,
}

enum Verb<'a> {
    Attempt {
        acquisition: &'a Acquisition<'a>,
        in_queue: &'a [&'a str],
        deadline: HostInstant,
        /// Whether the server has refused it as late once, by which its clock is known.
        was_late: bool,
    },
    Renew {
        ttl: String,
        deadline: HostInstant,
    },
    Release,
}

enum State {
    Unanswered,
    /// The reply has come. Replicas may have to acknowledge what it says.
    Replied(Value),
    Done(Result<Value, Failure>),
}

impl<'a> Call<'a> {
    /// An attempt to acquire a name. The server grants nothing after `deadline`. `in_queue` has the waiter
    /// and its state, if it queues.
    pub(crate) fn attempt(
        acquisition: &'a Acquisition<'a>,
        in_queue: &'a [&'a str],
        deadline: HostInstant,
    ) -> Self {
        let verb = Verb::Attempt {
            acquisition,
            in_queue,
            deadline,
            was_late: false,
        };
        Self::new(&acquisition.lease, verb)
    }

    /// A renewal. It is of no use after `deadline`.
    pub(crate) fn renew(lease: &'a RedisLease, ttl: String, deadline: HostInstant) -> Self {
        Self::new(lease, Verb::Renew { ttl, deadline })
    }

    pub(crate) fn release(lease: &'a RedisLease) -> Self {
        Self::new(lease, Verb::Release)
    }

    fn new(lease: &'a RedisLease, verb: Verb<'a>) -> Self {
        Self {
            lease,
            verb,
            state: State::Unanswered,
            asked_at: HostInstant::NEVER,
        }
    }

    /// Returns the reply, and when the request for it was sent.
    pub(crate) fn into_reply(self) -> (Result<Value, Failure>, HostInstant) {
        let reply = match self.state {
            State::Done(reply) => reply,
            State::Replied(_) | State::Unanswered => Err(Failure::Unanswered(senseless())),
        };
        (reply, self.asked_at)
    }

    /// Marks a renewal without a reply for the next run, if there is time, and returns whether it did. Renewing a lease
    /// twice does no harm.
    pub(crate) fn repeat_renewal(&mut self, now: HostInstant) -> bool {
        let is_unanswered = matches!(self.state, State::Done(Err(Failure::Unanswered(_))));
        let repeats =
            is_unanswered && matches!(self.verb, Verb::Renew { deadline, .. } if now < deadline);
        if repeats {
            self.state = State::Unanswered;
        }
        repeats
    }

    fn is_attempt(&self) -> bool {
        matches!(self.verb, Verb::Attempt { .. })
    }

    fn is_unanswered(&self) -> bool {
        matches!(self.state, State::Unanswered)
    }

    fn is_granted(&self) -> bool {
        let is_grant = |reply| matches!(Reply::read(reply), Some(Reply::Granted { .. }));
        self.is_attempt() && matches!(&self.state, State::Replied(reply) if is_grant(reply))
    }

    fn is_renewed(&self) -> bool {
        matches!(self.verb, Verb::Renew { .. })
            && matches!(self.state, State::Replied(Value::Int(1..)))
    }

    fn refuse(&mut self, error: Error) {
        self.state = State::Done(Err(Failure::Refused(error)));
    }

    fn script(&self) -> &'static Script {
        match self.verb {
            Verb::Attempt { acquisition, .. } if acquisition.proposed.is_some() => &PROPOSE,
            Verb::Attempt { .. } => &ACQUIRE,
            Verb::Renew { .. } => &RENEW,
            Verb::Release => &RELEASE,
        }
    }

    /// Returns the command. With `loads`, the server keeps the script.
    fn command(&self, store: &Store, limit: Duration, loads: bool) -> Vec<u8> {
        let RedisLease { key, text } = self.lease;
        let command = match loads {
            true => Script::by_code,
            false => Script::by_sha,
        };
        let script = self.script();
        match &self.verb {
            Verb::Attempt {
                acquisition,
                in_queue,
                deadline,
                ..
            } => {
                // The network may delay the request, and the caller may have gone.
                let latest = (self.asked_at + limit).min(*deadline);
                let latest = store.server_clock.at(latest).to_string();
                let of_bucket = store.node.as_ref().map(|_| bucket_keys::epoch_key(key));
                let epoch_key = of_bucket.as_ref().unwrap_or(&store.epoch_key);
                let mut args = vec![latest.as_str(), text, &acquisition.ttl, epoch_key];
                args.extend(*in_queue);
                if let Some(micros) = &acquisition.proposed {
                    args.extend(["", "", micros]);
                }
                match &of_bucket {
                    Some(epoch_key) => command(script, &[key, epoch_key], &args),
                    None => command(script, &[key], &args),
                }
            }
            Verb::Renew { ttl, .. } => command(script, &[key], &[text, ttl]),
            Verb::Release => command(script, &[key], &[text]),
        }
    }

    /// Takes the reply of a primary. A request that came too late by what was known of the server's clock
    /// is repeated once, since its caller still waits.
    fn take(&mut self, reply: Value, store: &Store) {
        if let Some(refusal) = store.refusal_of_node(&reply, self.is_attempt()) {
            self.refuse(refusal);
            return;
        }
        if let Verb::Attempt {
            deadline, was_late, ..
        } = &mut self.verb
            && let Some(Reply::Late(now)) = Reply::read(&reply)
        {
            store.server_clock.update(now, self.asked_at);
            let text = if store.clock.now() >= *deadline {
                "the request reached the server when its time was over, so nothing was granted"
            } else if *was_late {
                "the server's clock jumps; see to its time service"
            } else {
                *was_late = true;
                return;
            };
            self.refuse(Error::new(ErrorKind::Unavailable, text));
            return;
        }
        if let (Verb::Renew { .. }, Value::Int(now)) = (&self.verb, &reply) {
            store.note_time(now.abs(), self.asked_at);
        }
        self.state = State::Replied(reply);
    }

    /// Ends a run on one connection. Without the replicas' word a write counts as unanswered.
    fn finish(&mut self, is_acknowledged: bool) {
        let is_write = self.is_granted() || self.is_renewed();
        let state = std::mem::replace(&mut self.state, State::Unanswered);
        self.state = match (state, &self.verb) {
            (State::Replied(_), verb) if is_write && !is_acknowledged => {
                if let Verb::Attempt { acquisition, .. } = verb {
                    acquisition.may_be_granted.set(true);
                }
                State::Unanswered
            }
            (State::Replied(reply), _) => State::Done(Ok(reply)),
            (state, _) => state,
        }
    }
}

impl Store {
    /// Runs those of `calls` that have no answer yet, and gives each its own. A failure of the transport
    /// is the answer of all that got no reply.
    ///
    /// Attempts alone never use the last connection of several, which renewals and releases need.
    ///
    /// A cancel closes the connection, and ends the calls with that.
    pub(crate) fn run_calls(
        &self,
        calls: &mut [Call<'_>],
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) {
        let is_spare = calls.iter().all(Call::is_attempt);
        let work = |connection: &mut Connection, limit| {
            let close = cancel.zip(connection.closer());
            let registered = close.map(|(cancel, close)| cancel.on_cancel(close));
            let ran = self.run_on(connection, calls, limit);
            drop(registered);
            match cancel.is_some_and(CancelToken::is_cancelled) {
                true => Err(Failure::Unanswered(Error::new(
                    ErrorKind::Unknown,
                    "the acquisition was cancelled before a reply came",
                ))),
                false => ran,
            }
        };
        let ran = match is_spare {
            true => self.with_spare_connection(until, work),
            false => self.with_connection(until, work),
        };
        if let Err(failure) = ran {
            for call in calls.iter_mut().filter(|call| call.is_unanswered()) {
                call.state = State::Done(Err(failure.clone()));
            }
        }
    }

    fn run_on(
        &self,
        connection: &mut Connection,
        calls: &mut [Call<'_>],
        limit: Duration,
    ) -> Result<(), Failure> {
        let began = self.clock.now();
        if let Err(refusal) = connection.check_grace(began) {
            let attempts = calls.iter_mut().filter(|call| call.is_attempt());
            for call in attempts.filter(|call| call.is_unanswered()) {
                call.refuse(refusal.clone());
            }
        }
        let ran = self.exchange(connection, calls, limit);
        let ran = ran.and_then(|()| self.await_replicas(connection, calls, began, limit));
        let is_acknowledged = ran.is_ok() || self.options.replicas == 0;
        calls
            .iter_mut()
            .for_each(|call| call.finish(is_acknowledged));
        ran
    }

    /// Sends the calls without an answer until each has a reply: again where the server does not have the
    /// script, or where its clock was not known.
    fn exchange(
        &self,
        connection: &mut Connection,
        calls: &mut [Call<'_>],
        limit: Duration,
    ) -> Result<(), Failure> {
        let began = self.clock.now();
        let mut missing: Vec<&Script> = Vec::new();
        loop {
            let asked_at = self.clock.now();
            let left = limit.saturating_sub(asked_at.saturating_since(began));
            let unanswered = calls.iter_mut().filter(|call| call.is_unanswered());
            let mut asked: Vec<_> = unanswered.collect();
            let mut commands = Vec::new();
            for call in &mut asked {
                call.asked_at = asked_at;
                let script = call.script();
                let at = missing.iter().position(|it| std::ptr::eq(*it, script));
                // One command loads the script for those behind it.
                let loads = at.map(|at| missing.swap_remove(at)).is_some();
                commands.extend(call.command(self, left, loads));
            }
            if asked.is_empty() {
                return Ok(());
            }
            let mut replies = Vec::with_capacity(asked.len());
            let mut result = connection.exchange_into(&mut replies, &commands, asked.len(), left);
            for (call, reply) in asked.iter_mut().zip(replies) {
                match from_primary(reply) {
                    Err(failure) => result = Err(failure),
                    Ok(reply) if !is_no_script(&reply) => call.take(reply, self),
                    Ok(_) if missing.iter().any(|it| std::ptr::eq(*it, call.script())) => {}
                    Ok(_) => missing.push(call.script()),
                }
            }
            result?;
        }
    }

    /// Waits for the replicas to acknowledge grants and renewals, and gives grants back if they do not.
    fn await_replicas(
        &self,
        connection: &mut Connection,
        calls: &mut [Call<'_>],
        began: HostInstant,
        limit: Duration,
    ) -> Result<(), Failure> {
        if !calls
            .iter()
            .any(|call| call.is_granted() || call.is_renewed())
        {
            return Ok(());
        }
        let refusal = match self.acknowledged(connection, began, limit) {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(Failure::Refused(error)) => Some(error),
            // A release on a replica is none: the new primary may know of the grant.
            Err(failure) => return Err(failure),
        };
        let refusal = |what| refusal.clone().unwrap_or_else(|| self.few_replicas(what));
        for call in calls.iter_mut().filter(|call| call.is_renewed()) {
            call.refuse(refusal("renewal"));
        }
        let granted = calls.iter_mut().filter(|call| call.is_granted());
        let mut granted: Vec<_> = granted.collect();
        let releases = granted.iter().map(|call| Call::release(call.lease));
        let mut releases: Vec<_> = releases.collect();
        let given_back = self.exchange(connection, &mut releases, limit);
        for (call, release) in granted.iter_mut().zip(releases) {
            let released = match (release.state, &given_back) {
                (State::Replied(reply), _) => accepted(reply).map(drop),
                (_, Err(failure)) => Err(failure.clone()),
                (_, Ok(())) => Err(Failure::Unanswered(senseless())),
            };
            let refusal = Failure::Refused(refusal("grant"));
            let failure =
                released.map_or_else(|failure| unknown(failure.into_error()), |()| refusal);
            call.state = State::Done(Err(failure));
        }
        given_back
    }
}
