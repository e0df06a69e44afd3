//! Waiting for a name among other processes.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant};
use lockkeeper_remote::{Failure, LAST_ATTEMPT, senseless};

use super::Locks;
use super::batch::MAX_NODES;
use super::call::{Answer, Call};
use super::exchange::{self, Way};
use crate::topology::listener::Waiter;
use crate::topology::node::Node;
use crate::wire::lease::RedisLease;

/// The longest time between two attempts of a waiter that is not notified.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
/// The same time for the second waiter. It is shorter, since the first waiter may be stopped.
const SECOND_ATTEMPT_EVERY: Duration = Duration::from_millis(100);

type Acquired = Option<Grant<RedisLease>>;

impl Locks {
    /// Acquires a name at the node that owns its slot, and waits for it there.
    pub(crate) fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired, Error> {
        let (key, until, cancel) = (self.key(request), request.end(), request.cancel());
        let mut node = self.topology.owner(&key, until, cancel)?;
        for _ in 1..MAX_NODES {
            let error = match self.acquire_at(&node, &key, request) {
                Err(failure) => failure.into_error(),
                Ok(acquired) => return Ok(acquired),
            };
            let may_go_on = error.kind() == ErrorKind::Unavailable;
            let owner = may_go_on.then(|| self.topology.owner(&key, until, cancel));
            match owner {
                Some(Ok(owner)) if owner.endpoint != node.endpoint => node = owner,
                _ => return Err(error),
            }
        }
        let acquired = self.acquire_at(&node, &key, request);
        acquired.map_err(Failure::into_error)
    }

    fn acquire_at(
        &self,
        node: &Node,
        key: &str,
        request: &AcquireRequest<'_>,
    ) -> Result<Acquired, Failure> {
        let acquired = match request.deadline() {
            Some(deadline) => self.wait_at(node, key, request, deadline)?,
            None => {
                let mut call = self.attempt(request, HostInstant::NEVER);
                match attempt(node, &mut call, request)? {
                    Answer::Granted(grant) => Some(grant),
                    _ => {
                        request.contended();
                        None
                    }
                }
            }
        };
        if acquired.is_some() {
            node.listener.note_grant();
        }
        Ok(acquired)
    }

    fn wait_at(
        &self,
        node: &Node,
        key: &str,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) -> Result<Acquired, Failure> {
        let listener = &node.listener;
        let waiter = listener.enter(request.mode());
        let mut call = self.attempt(request, HostInstant::NEVER);
        let mut entry = QueueEntry {
            node,
            key,
            waiter: &waiter,
            is_queued: false,
        };
        let unparker = waiter.parker.unparker().clone();
        let cancel = request.cancel();
        let _wake = cancel.map(|cancel| cancel.on_cancel(move || unparker.unpark()));
        // A waiter queues only if messages can reach it.
        let mut joins_queue = false;
        let mut was_busy = false;
        loop {
            joins_queue |= listener.is_listening();
            if request.is_cancelled() {
                return Ok(None);
            }
            let now = request.now();
            let is_last = was_busy && now >= deadline;
            let state = match (is_last, entry.is_queued) {
                (true, _) => "last",
                (false, true) => "queued",
                (false, false) => "new",
            };
            entry.is_queued |= joins_queue;
            let queues = joins_queue.then_some((waiter.name.as_str(), state));
            let (ends, before) = match repeat_attempt(node, &mut call, request, queues, was_busy) {
                Ok(Answer::Granted(grant)) => {
                    // A request without a reply may have queued after a later one was granted.
                    entry.is_queued &= call.is_repeated();
                    return Ok(Some(grant));
                }
                Ok(Answer::Busy { ends, before }) => (ends, before),
                Ok(Answer::Held(_) | Answer::Inspected(_)) => {
                    return Err(Failure::Unanswered(senseless()));
                }
                Err(failure) => {
                    // If the server does not reply, no request to remove the waiter is sent. It is removed when it
                    // is the first and keeps others out. A cancel has closed the connection of a server that may reply.
                    let replies = matches!(failure, Failure::Refused(_));
                    entry.is_queued &= replies || request.is_cancelled();
                    return Err(failure);
                }
            };
            request.contended();
            was_busy = true;
            if is_last {
                entry.is_queued = false;
                return Ok(None);
            }
            if !joins_queue && !listener.is_about_to_listen() {
                joins_queue = true;
                continue;
            }
            let now = request.now();
            let until = now + ends.min(next_attempt(before));
            let pause = until.min(deadline).saturating_since(now);
            waiter.parker.park_timeout(pause);
        }
    }
}

/// Makes an attempt. If it fails and the waiter may be in the queue, repeats it while the engine allows
/// that. By returning the failure, the waiter would lose its position.
fn repeat_attempt<'a>(
    node: &Node,
    call: &mut Call<'a>,
    request: &AcquireRequest<'_>,
    queues: Option<(&'a str, &'static str)>,
    was_busy: bool,
) -> Result<Answer, Failure> {
    loop {
        call.attempt_again(queues);
        let failure = match attempt(node, call, request) {
            Err(failure) => failure,
            answer => return answer,
        };
        let may_be_queued = was_busy || call.may_be_granted();
        // On another node the waiter has no position yet.
        let is_over = !may_be_queued || node.has_lost(&call.key, request.end(), request.cancel());
        if is_over || !request.retry(failure.error()) {
            return Err(failure);
        }
    }
}

fn attempt(
    node: &Node,
    call: &mut Call<'_>,
    request: &AcquireRequest<'_>,
) -> Result<Answer, Failure> {
    exchange::run_on_node(
        node,
        &mut [call],
        Way::Owner,
        None,
        request.end(),
        request.cancel(),
    );
    call.answer()
}

/// Removes a waiter from the queue of a name. If that fails, the waiter is removed when it is the first and keeps others
/// out. The caller of an acquisition waits for this.
pub(super) fn leave(node: &Node, key: &str, waiter: &str) {
    // It is shorter than the tenth of a second within which a cancel returns.
    let until = node.clock.now() + LAST_ATTEMPT / 2;
    let mut call = Call::leave(key, waiter, until);
    exchange::run_on_node(node, &mut [&mut call], Way::Owner, None, until, None);
}

/// An entry in the wait queue of a name, removed on every way out.
struct QueueEntry<'a> {
    node: &'a Node,
    key: &'a str,
    waiter: &'a Waiter,
    is_queued: bool,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if self.is_queued {
            leave(self.node, self.key, &self.waiter.name);
        }
    }
}

/// Returns the time until the next attempt of a waiter that is not woken, different for each.
fn next_attempt(before: i64) -> Duration {
    let longest = match before {
        1 => SECOND_ATTEMPT_EVERY,
        _ => ATTEMPT_EVERY,
    };
    longest.mul_f64(0.8 + fastrand::f64() / 5.0)
}
