//! One request about one name, and its answer.

use std::borrow::Cow;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant, limit_mismatch};
use lockkeeper_remote::{Endpoint, Failure, senseless};
use redis::Value;

use crate::topology::node::Node;
use crate::wire::failure::{accepted, parse};
use crate::wire::keys::Keys;
use crate::wire::lease::{self, RedisLease, lasting_part, millis, owner};
use crate::wire::scripts::{
    ACQUIRE, INSPECT, LEAVE, PROPOSE, RELEASE, RENEW, RESUME, Reply, Script,
};
use crate::wire::server_clock::{epoch, last_epoch, micros};

/// A request about one name.
pub(super) struct Call<'a> {
    pub(super) key: Cow<'a, str>,
    /// The lease, or the mode and the owner alone, or a waiter.
    text: Cow<'a, str>,
    verb: Verb<'a>,
    /// After it, the answer is of no use.
    pub(super) deadline: HostInstant,
    pub(super) state: State,
    /// When it was sent last.
    asked_at: HostInstant,
    /// The node to which an ASK reply has sent it.
    pub(super) next: Option<Endpoint>,
}

enum Verb<'a> {
    Attempt(Box<Attempt<'a>>),
    Renew { ttl: String },
    Release,
    Leave,
    Inspect,
}

struct Attempt<'a> {
    request: &'a AcquireRequest<'a>,
    part: usize,
    epoch_key: Cow<'a, str>,
    /// Whether the key of the epoch is in the slot of the lock's, and among the `KEYS`.
    has_epoch_beside: bool,
    /// In milliseconds.
    ttl: String,
    /// The time of the epoch that the request proposes, in microseconds.
    proposed: Option<String>,
    /// The waiter and its state, if it queues.
    in_queue: Option<(&'a str, &'static str)>,
    /// The part of the lease that stays, if the request resumes it.
    resumed: Option<String>,
    /// Whether the server may have granted the name in an attempt that failed.
    may_be_granted: bool,
    /// Whether the server has refused it as late once, by which its clock is known.
    was_late: bool,
}

pub(super) enum State {
    Unanswered,
    /// A release that was sent before, and its reply is to be read.
    Sent,
    /// The reply has come, and replicas have to acknowledge what it says.
    Unacknowledged(Answer),
    Done(Result<Answer, Failure>),
}

/// The number of waiters of a name, and its leases, each with the milliseconds until it ends.
pub(crate) type Inspected = (u64, Vec<(Vec<u8>, i64)>);

pub(super) enum Answer {
    Granted(Grant<RedisLease>),
    Busy {
        /// The time until the first of the leases ends.
        ends: Duration,
        /// The number of waiters before this one.
        before: i64,
    },
    /// Whether the lease was live.
    Held(bool),
    /// The leases of a name.
    Inspected(Inspected),
}

impl<'a> Call<'a> {
    /// An attempt to acquire a name, whose key is kept by this part of the store. The server grants nothing after
    /// `deadline`.
    pub(super) fn attempt(
        keys: &'a Keys,
        (key, part): (String, usize),
        request: &'a AcquireRequest<'a>,
        deadline: HostInstant,
    ) -> Self {
        let attempt = Attempt {
            request,
            part,
            epoch_key: keys.epoch(&key),
            has_epoch_beside: keys.only_epoch().is_none(),
            ttl: millis(request.ttl()).to_string(),
            proposed: request.proposed_epoch().map(|it| micros(it).to_string()),
            in_queue: None,
            resumed: request.is_resume().then(|| lasting_part(request)),
            may_be_granted: false,
            was_late: false,
        };
        let verb = Verb::Attempt(Box::new(attempt));
        Self::new(key.into(), owner(request).into(), verb, deadline)
    }

    pub(super) fn renew(lease: &'a RedisLease, ttl: Duration, deadline: HostInstant) -> Self {
        let ttl = millis(ttl).to_string();
        let (key, text) = (lease.key.as_str(), lease.text.as_str());
        Self::new(key.into(), text.into(), Verb::Renew { ttl }, deadline)
    }

    /// The release of a lease. If the reply to its grant was lost, `text` has the mode and the owner alone.
    pub(super) fn release(
        key: impl Into<Cow<'a, str>>,
        text: impl Into<Cow<'a, str>>,
        deadline: HostInstant,
    ) -> Self {
        Self::new(key.into(), text.into(), Verb::Release, deadline)
    }

    /// A release that was sent before.
    pub(super) fn sent_release(lease: &'a RedisLease, deadline: HostInstant) -> Self {
        Self {
            state: State::Sent,
            ..Self::release(&*lease.key, &*lease.text, deadline)
        }
    }

    /// Removes a waiter from the queue of a name.
    pub(super) fn leave(key: &'a str, waiter: &'a str, deadline: HostInstant) -> Self {
        Self::new(key.into(), waiter.into(), Verb::Leave, deadline)
    }

    /// Asks for the leases of a name.
    pub(super) fn inspect(key: String, deadline: HostInstant) -> Self {
        Self::new(key.into(), "".into(), Verb::Inspect, deadline)
    }

    fn new(key: Cow<'a, str>, text: Cow<'a, str>, verb: Verb<'a>, deadline: HostInstant) -> Self {
        Self {
            key,
            text,
            verb,
            deadline,
            state: State::Unanswered,
            asked_at: HostInstant::NEVER,
            next: None,
        }
    }

    /// Returns the release of what this attempt was granted.
    pub(super) fn give_back(&self) -> Call<'_> {
        Call::release(&*self.key, &*self.text, self.deadline)
    }

    /// Makes an attempt again, as a waiter in this state if it queues.
    pub(super) fn attempt_again(&mut self, queues: Option<(&'a str, &'static str)>) {
        if let Verb::Attempt(attempt) = &mut self.verb {
            attempt.in_queue = queues;
            attempt.was_late = false;
        }
        self.state = State::Unanswered;
    }

    pub(super) fn is_attempt(&self) -> bool {
        matches!(self.verb, Verb::Attempt(_))
    }

    /// Returns whether it is an attempt whose grant is a new lease.
    pub(super) fn is_of_new_lease(&self) -> bool {
        matches!(&self.verb, Verb::Attempt(attempt) if attempt.resumed.is_none())
    }

    pub(super) fn is_renewal(&self) -> bool {
        matches!(self.verb, Verb::Renew { .. })
    }

    pub(super) fn is_release(&self) -> bool {
        matches!(self.verb, Verb::Release)
    }

    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self.state, State::Unanswered)
    }

    pub(super) fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent)
    }

    pub(super) fn is_unacknowledged(&self) -> bool {
        matches!(self.state, State::Unacknowledged(_))
    }

    pub(super) fn may_be_granted(&self) -> bool {
        matches!(&self.verb, Verb::Attempt(attempt) if attempt.may_be_granted)
    }

    /// Returns whether an earlier request of this owner may have been granted.
    pub(super) fn is_repeated(&self) -> bool {
        matches!(&self.verb, Verb::Attempt(attempt) if attempt.may_be_granted || attempt.request.is_retry())
    }

    /// Returns the answer.
    pub(super) fn answer(&mut self) -> Result<Answer, Failure> {
        match std::mem::replace(&mut self.state, State::Unanswered) {
            State::Done(answer) => answer,
            _ => Err(Failure::Unanswered(senseless())),
        }
    }

    pub(super) fn script(&self) -> &'static Script {
        match &self.verb {
            Verb::Attempt(attempt) if attempt.proposed.is_some() => &PROPOSE,
            Verb::Attempt(attempt) if attempt.resumed.is_some() => &RESUME,
            Verb::Attempt(_) => &ACQUIRE,
            Verb::Renew { .. } => &RENEW,
            Verb::Release => &RELEASE,
            Verb::Leave => &LEAVE,
            Verb::Inspect => &INSPECT,
        }
    }

    /// Returns the command that is sent to a node at `now`, and has `limit` for its reply. With `loads`, the server keeps
    /// the script.
    pub(super) fn command(
        &mut self,
        node: &Node,
        now: HostInstant,
        limit: Duration,
        loads: bool,
    ) -> Vec<u8> {
        self.asked_at = now;
        let (script, key, text) = (self.script(), &*self.key, &*self.text);
        let command = |keys: &[&str], args: &[&str]| script.command(loads, keys, args);
        let attempt = match &self.verb {
            Verb::Attempt(attempt) => attempt,
            Verb::Renew { ttl } => return command(&[key], &[text, ttl]),
            Verb::Release | Verb::Leave => return command(&[key], &[text]),
            Verb::Inspect => return command(&[key], &[]),
        };
        // The network may delay the request until the caller has stopped waiting.
        let latest = node.server_clock.at((now + limit).min(self.deadline));
        let latest = latest.to_string();
        let mut args = vec![latest.as_str(), text, &attempt.ttl, &attempt.epoch_key];
        if let Some((waiter, state)) = attempt.in_queue {
            args.extend([waiter, state]);
        }
        args.extend(attempt.resumed.as_deref());
        if let Some(micros) = &attempt.proposed {
            args.extend(["", "", micros]);
        }
        match attempt.has_epoch_beside {
            true => command(&[key, &attempt.epoch_key], &args),
            false => command(&[key], &args),
        }
    }

    /// Applies the reply of a primary. If an attempt was late only by the estimate of the server's clock, it stays
    /// unanswered once, since its caller still waits.
    pub(super) fn take(&mut self, reply: Value, node: &Node) {
        if let Some(refusal) = node.refusal(&reply, self.is_attempt()) {
            self.next = refusal.next;
            return self.fail(Failure::Refused(refusal.error));
        }
        let answer = match &mut self.verb {
            Verb::Attempt(attempt) => {
                if let Some(Reply::Late(now)) = Reply::read(&reply) {
                    node.server_clock.update(now, self.asked_at);
                    let text = if node.clock.now() >= self.deadline {
                        "the request reached the server when its time was over, so nothing was granted"
                    } else if attempt.was_late {
                        "the server's clock jumps; see to its time service"
                    } else {
                        attempt.was_late = true;
                        return;
                    };
                    let late = Error::new(ErrorKind::Unavailable, text);
                    return self.fail(Failure::Refused(late));
                }
                let part = attempt.part;
                let lease = |minted, slot| RedisLease {
                    part,
                    key: self.key.clone().into_owned(),
                    text: lease::lease(minted, slot, &self.text),
                };
                accepted(reply).and_then(|reply| attempt.read(&reply, lease, self.asked_at, node))
            }
            Verb::Renew { .. } => held(reply).map(|now| {
                node.note_time(now.saturating_abs(), self.asked_at);
                Answer::Held(now > 0)
            }),
            Verb::Release | Verb::Leave => held(reply).map(|found| Answer::Held(found > 0)),
            Verb::Inspect => accepted(reply).and_then(parse).map(Answer::Inspected),
        };
        match answer {
            Ok(answer) if node.options.replicas > 0 && self.is_write(&answer) => {
                self.state = State::Unacknowledged(answer);
            }
            Ok(answer) => self.state = State::Done(Ok(answer)),
            Err(failure) => self.fail(failure),
        }
    }

    /// Returns whether the answer is a grant or a successful renewal. These wait for replicas; releases do not.
    fn is_write(&self, answer: &Answer) -> bool {
        match answer {
            Answer::Granted(_) => true,
            Answer::Held(is_held) => *is_held && self.is_renewal(),
            Answer::Busy { .. } | Answer::Inspected(_) => false,
        }
    }

    /// Ends a run on one connection. Without the replicas' acknowledgement, a write counts as unanswered.
    pub(super) fn end_run(&mut self, is_acknowledged: bool) {
        if !self.is_unacknowledged() {
            return;
        }
        let state = std::mem::replace(&mut self.state, State::Unanswered);
        match (state, &mut self.verb) {
            (State::Unacknowledged(answer), _) if is_acknowledged => {
                self.state = State::Done(Ok(answer));
            }
            (_, Verb::Attempt(attempt)) => attempt.may_be_granted = true,
            _ => {}
        }
    }

    /// Ends the call with a failure. That of an attempt is unknown if another one of the same owner got no reply.
    pub(super) fn fail(&mut self, failure: Failure) {
        let failure = match (&mut self.verb, failure) {
            (Verb::Attempt(attempt), failure @ Failure::Unanswered(_)) => {
                attempt.may_be_granted = true;
                failure
            }
            // Such a refusal tells the user what to change.
            (_, failure @ Failure::Refused(_))
                if failure.error().kind() != ErrorKind::Unavailable =>
            {
                failure
            }
            (Verb::Attempt(attempt), failure) if attempt.may_be_granted => {
                unknown(failure.into_error())
            }
            (_, failure) => failure,
        };
        self.state = State::Done(Err(failure));
    }

    /// Marks a renewal without a reply for the next run, if there is time. Returns whether it did. A lease can be
    /// renewed twice.
    pub(super) fn repeat_renewal(&mut self, now: HostInstant) -> bool {
        let is_unanswered = matches!(self.state, State::Done(Err(Failure::Unanswered(_))));
        let repeats = self.is_renewal() && is_unanswered && now < self.deadline;
        if repeats {
            self.state = State::Unanswered;
        }
        repeats
    }

    /// Returns whether the call failed in a way that allows sending it to another node: it had no effect, or it is
    /// a renewal.
    pub(super) fn may_go_on(&self) -> bool {
        let State::Done(Err(failure)) = &self.state else {
            return false;
        };
        match failure.error().kind() {
            ErrorKind::Unavailable => true,
            ErrorKind::Unknown => self.is_renewal(),
            _ => false,
        }
    }

    /// Returns whether the server has replied that the lease is live: by a grant or a renewal.
    pub(super) fn is_live(&self) -> bool {
        matches!(&self.state, State::Done(Ok(answer)) if self.is_write(answer))
    }
}

impl Attempt<'_> {
    fn read(
        &mut self,
        reply: &Value,
        lease: impl FnOnce(i64, u32) -> RedisLease,
        asked_at: HostInstant,
        node: &Node,
    ) -> Result<Answer, Failure> {
        let senseless = || Failure::Refused(senseless());
        let request = self.request;
        match Reply::read(reply) {
            Some(Reply::Granted { minted, slot }) => {
                let proposed = request.proposed_epoch();
                if proposed.is_none() && !self.may_be_granted && !request.is_retry() {
                    // The epoch is the server's time.
                    node.server_clock.update(minted, asked_at);
                }
                let slot = u32::try_from(slot).map_err(|_| senseless())?;
                Ok(Answer::Granted(Grant {
                    lease: lease(minted, slot),
                    epoch: proposed.or_else(|| epoch(minted)).ok_or_else(senseless)?,
                    asked_at,
                    slot,
                }))
            }
            Some(Reply::Busy { ends, before }) => {
                self.may_be_granted = false;
                let ends = u64::try_from(ends).map_err(|_| senseless())?;
                Ok(Answer::Busy {
                    ends: Duration::from_millis(ends.saturating_add(1)),
                    before,
                })
            }
            Some(Reply::OtherLimit(held)) => {
                self.may_be_granted = false;
                let asked = request.mode().limit().ok_or_else(senseless)?;
                let held = u32::try_from(held).map_err(|_| senseless())?;
                Err(Failure::Refused(limit_mismatch(asked, held)))
            }
            Some(Reply::EpochTooSmall(last)) => {
                self.may_be_granted = false;
                let proposed = request.proposed_epoch().ok_or_else(senseless)?;
                let last = last_epoch(last).ok_or_else(senseless)?;
                Err(Failure::Refused(Error::epoch_too_small(proposed, last)))
            }
            Some(Reply::Late(_)) | None => Err(senseless()),
        }
    }
}

/// Reads the reply of a renewal or a release: above zero if the lease was live.
fn held(reply: Value) -> Result<i64, Failure> {
    accepted(reply).and_then(parse)
}

/// Returns the failure of an attempt after an earlier attempt of the same owner got no reply. The earlier one
/// may have been granted.
pub(super) fn unknown(cause: Error) -> Failure {
    Failure::Unanswered(
        Error::new(
            ErrorKind::Unknown,
            "no reply came to the request, and a later one failed; what the server may have granted ends with its ttl",
        )
        .with_source(cause),
    )
}
