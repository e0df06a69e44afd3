//! Acquiring a name: through the wait queue of the process, and at its head from the store.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::{AcquireOptions, LeasePolicy, Wait};
use crate::provider::{AcquireRequest, ErasedLease, Grant, Renewal};
use crate::timer::MAX_SLEEP;
use crate::token::FencingToken;

use super::hold::Hold;
use super::hold::acquired::Acquired;
use super::queue::Entered;
use super::retry::Retry;
use super::waiter::{Given, Unserved, Waiter};
use super::{ATTEMPT_LIMIT, Engine};

/// The longest that the confirmation of an old grant may outlast the wait: some round trips of a busy
/// machine.
const CONFIRM_LIMIT: Duration = Duration::from_secs(1);

/// One call of [`Engine::acquire`].
struct Acquisition<'a> {
    engine: &'a Engine,
    policy: LeasePolicy,
    request: AcquireRequest<'a>,
    /// The caller's own token, without the keeper's.
    cancel: Option<&'a CancelToken>,
    /// Tells the observer, once, that another holder has the name.
    notify_contended: &'a dyn Fn(),
}

impl Engine {
    pub(crate) fn acquire(
        self: &Arc<Self>,
        name: &LockName,
        options: &AcquireOptions,
    ) -> Result<Option<Acquired>, Error> {
        let began = self.clock.now();
        let wait = options.wait.unwrap_or(self.settings.wait);
        let policy = options.lease.unwrap_or(self.settings.lease);
        wait.check()
            .and(policy.check(&self.capabilities))
            .map_err(|error| self.located(name, error))?;
        self.start_timer()?;
        let is_notified = Cell::new(false);
        let notify_contended = || {
            if !is_notified.replace(true) {
                self.notifier.notify(|o| o.contended(name));
            }
        };
        let contended = || {
            self.queue.contended(name);
            notify_contended();
        };
        let closing = &self.closing.token;
        let own_or_closing = options.cancel.as_ref().map(|own| own.with_parent(closing));
        let acquisition = Acquisition {
            engine: self,
            policy,
            cancel: options.cancel.as_ref(),
            request: AcquireRequest {
                name,
                ttl: policy.ttl(),
                deadline: match wait {
                    Wait::AtMost(Duration::ZERO) => None,
                    Wait::AtMost(wait) => Some(began + wait),
                    Wait::Forever => Some(HostInstant::NEVER),
                },
                started: Cell::new(began),
                owner: Cell::new(None),
                is_retry: Cell::new(false),
                has_seen_holder: Cell::new(false),
                cancel: Some(own_or_closing.as_ref().unwrap_or(closing)),
                clock: &*self.clock,
                contended: &contended,
            },
            notify_contended: &notify_contended,
        };
        let result = acquisition.run();
        self.closing.notify();
        let result = result.map_err(|error| self.located(name, error));
        if self.notifier.is_some() {
            let waited = self.clock.now().saturating_since(began);
            self.notifier.notify(|o| match &result {
                Ok(Some(acquired)) => {
                    o.acquired(name, acquired.token(), waited, acquired.handovers > 0);
                }
                Ok(None) => o.not_acquired(name, waited, None),
                Err(error) => o.not_acquired(name, waited, Some(error)),
            });
        }
        result
    }
}

impl Acquisition<'_> {
    fn run(&self) -> Result<Option<Acquired>, Error> {
        let (engine, request) = (self.engine, &self.request);
        if request.is_cancelled() {
            return Err(engine.cancelled());
        }
        let is_single_attempt = request.deadline.is_none();
        let entered = engine
            .queue
            .enter(request.name, self.policy, is_single_attempt);
        let given = match entered {
            Entered::Given(given) => given,
            Entered::Queued(waiter) => {
                if !is_single_attempt {
                    (self.notify_contended)();
                }
                self.wait_in_queue(&waiter)
            }
        };
        match given {
            Given::HeadPermit => self.acquire_as_head(),
            Given::Hold(hold) => {
                let acquired = Acquired::new(hold);
                if request.is_cancelled() {
                    let _ = engine.release(&acquired);
                    return Err(engine.cancelled());
                }
                Ok(Some(acquired))
            }
            Given::Nothing(_) if request.is_cancelled() => Err(engine.cancelled()),
            Given::Nothing(Unserved::Busy) => {
                (self.notify_contended)();
                Ok(None)
            }
            Given::Nothing(Unserved::Failed(error)) => Err(error),
            Given::Nothing(Unserved::Silent) => Err(Error::new(
                ErrorKind::Unavailable,
                "the store has not answered another thread of this process that asked for the lock before, so it is not known whether it is free; try again later",
            )),
        }
    }

    /// Waits until the queue gives something, at most until the deadline.
    fn wait_in_queue(&self, waiter: &Arc<Waiter>) -> Given {
        let (engine, request) = (self.engine, &self.request);
        // The keeper's end unparks all waiters of the queue.
        let _registration = self.cancel.map(|token| {
            let waiter = Arc::clone(waiter);
            token.on_cancel(move || waiter.unpark())
        });
        let deadline = request.deadline;
        let deadline = deadline.unwrap_or(request.started() + ATTEMPT_LIMIT);
        let is_bounded = deadline != HostInstant::NEVER;
        let _waiting = is_bounded.then(|| engine.count_waiting(request.started()));
        let given = loop {
            let now = request.now();
            if now >= deadline || request.is_cancelled() {
                break engine.queue.leave(request.name, waiter);
            }
            let limit = is_bounded.then(|| deadline.saturating_since(now));
            if let Some(given) = waiter.wait(limit) {
                break given;
            }
        };
        let now = request.now();
        request.started.set(now);
        let is_over = request.deadline.is_some_and(|deadline| now >= deadline);
        if is_over && matches!(given, Given::HeadPermit) {
            let unserved = engine.queue.unserved(request.name, waiter);
            engine.queue.pass(request.name, None);
            return Given::Nothing(unserved);
        }
        given
    }

    /// Acquires the name from the store as the head of its queue.
    fn acquire_as_head(&self) -> Result<Option<Acquired>, Error> {
        let mut permit = HeadPermit {
            engine: self.engine,
            name: self.request.name,
            outcome: None,
        };
        let result = self.acquire_from_store();
        permit.outcome = match &result {
            Err(error) if error.kind() == ErrorKind::Cancelled => None,
            Err(error) => Some(Err(error.clone())),
            Ok(hold) => hold.clone().map(Ok),
        };
        drop(permit);
        Ok(result?.map(Acquired::new))
    }

    fn acquire_from_store(&self) -> Result<Option<Arc<Hold>>, Error> {
        let (engine, request) = (self.engine, &self.request);
        if request.is_cancelled() {
            return Err(engine.cancelled());
        }
        let until = request
            .deadline
            .unwrap_or(request.started() + engine.capabilities.attempt_limit());
        let mut retry = Retry::new(request.clock, until, request.cancel);
        loop {
            request.is_retry.set(retry.lost_reply().is_some());
            let failure = match engine.provider.acquire(request) {
                Ok(Some(grant)) => match self.confirm_grant(grant)? {
                    Some(hold) => return Ok(Some(hold)),
                    // No other holder was seen, so that is not busy.
                    None if request.deadline.is_some_and(|at| request.now() >= at) => {
                        return Err(Error::new(
                            ErrorKind::Unavailable,
                            "the store granted the lock, and its answer came after that lease had ended; try again, with a longer ttl where this happens often",
                        ));
                    }
                    None => continue,
                },
                Ok(None) => None,
                Err(error) => {
                    // A single attempt ends where a holder was seen.
                    let was_busy = request.deadline.is_some() && request.has_seen_holder.get();
                    match retry.after(error, was_busy) {
                        Ok(()) => continue,
                        Err(error) => Some(error),
                    }
                }
            };
            // A cancelled request need not have seen a holder.
            let is_cancelled = request.is_cancelled();
            if retry.lost_reply().is_some() && (is_cancelled || failure.is_some()) {
                engine.provider.abandon(request);
            }
            return match failure {
                _ if is_cancelled => Err(engine.cancelled()),
                Some(error) => Err(error),
                None => {
                    request.contended();
                    Ok(None)
                }
            };
        }
    }

    /// Makes a hold of a grant. `None` if the lease had ended before its grant was seen.
    fn confirm_grant(&self, grant: Grant<ErasedLease>) -> Result<Option<Arc<Hold>>, Error> {
        let (engine, request) = (self.engine, &self.request);
        let (mut lease, mut asked_at) = (grant.lease, grant.asked_at);
        let margin = engine.margin(request.ttl);
        let first_token = match FencingToken::new(grant.epoch, 0) {
            _ if request.is_cancelled() => return Err(engine.discard(lease, engine.cancelled())),
            Ok(token) => token,
            Err(error) => return Err(engine.discard(lease, error)),
        };
        // See `AcquireRequest::started`.
        let mut now = if asked_at == request.started() {
            asked_at
        } else {
            request.now()
        };
        // The store did the waiting, or this process was stopped before it read the reply.
        if now.saturating_since(asked_at) > margin {
            asked_at = now;
            // The caller waits for this answer, too, and not for the rest of a whole lease.
            let end = request.deadline.unwrap_or(now).max(now) + CONFIRM_LIMIT;
            let end = end.min(now + request.ttl);
            match engine.provider.renew(&mut lease, request.ttl, end) {
                Ok(Renewal::Renewed) => {}
                Ok(Renewal::Lost) => return Ok(None),
                Err(error) => return Err(engine.discard(lease, error)),
            }
            now = request.now();
        }
        Ok(Some(Arc::new(Hold::new(
            request.name.clone(),
            self.policy,
            margin,
            lease,
            first_token,
            asked_at,
            now,
        ))))
    }
}

/// The right to ask the store for a name. It is passed on also when the provider panics.
struct HeadPermit<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    /// The hold, or the error of a store that did not answer.
    outcome: Option<Result<Arc<Hold>, Error>>,
}

impl Drop for HeadPermit<'_> {
    fn drop(&mut self) {
        let queue = &self.engine.queue;
        match self.outcome.take() {
            None => queue.pass(self.name, None),
            Some(Err(error)) => queue.pass(self.name, Some(error)),
            Some(Ok(hold)) => {
                let due = hold.due();
                queue.hold(self.name, hold, due);
                self.engine.timer.note(HostInstant::from_nanos(due));
            }
        }
    }
}

/// A thread that waits in the queue with a deadline.
struct Waiting<'a>(&'a AtomicUsize);

impl Engine {
    /// Counts a thread that waits since `now` until the result is dropped. While there is one, the
    /// thread that watches deadlines wakes the waiters when the clock jumps.
    fn count_waiting(&self, now: HostInstant) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.timer.note(now + MAX_SLEEP);
        Waiting(&self.waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
