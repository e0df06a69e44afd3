//! Acquiring a name through the wait queue of the process; `head.rs` asks the store.
//!
//! A wait that ends behind a release is busy only if the store replies. If it is silent for 80 ms, nothing says that the
//! name is held.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, GRACE};
use crate::engine::timer::MAX_SLEEP;
use crate::error::{Error, ErrorKind};
use crate::mode::limit_mismatch;
use crate::name::LockName;
use crate::options::{AcquireOptions, LeaseTerms, Outage, Wait};

use super::Engine;
use super::backoff::Limits;
use super::head::HeadPermit;
use super::health::{Health, outlasted};
use super::hold::acquired::Acquired;
use super::key::Key;
use super::queue::Entered;
use super::report::AcquisitionReport;
use super::retry::Retry;
use super::waiter::{Given, Unserved, WaitKind, Waiter};

/// One call of [`Engine::acquire`].
pub(super) struct Acquisition<'a, 'e> {
    pub(super) engine: &'e Arc<Engine>,
    pub(super) key: Key<'a>,
    pub(super) terms: LeaseTerms,
    pub(super) kind: WaitKind,
    /// Whether it asks again while the store cannot be reached.
    pub(super) rides_out: bool,
    pub(super) request: AcquireRequest<'a>,
    /// The retries of this acquisition while it is the head.
    pub(super) retry: &'a RefCell<Retry<'e>>,
    /// The part of the store that keeps the name.
    pub(super) part: usize,
    /// When the store showed another holder last.
    pub(super) busy_at: &'a Cell<Option<HostInstant>>,
    /// The caller's own token, without the keeper's.
    pub(super) cancel: Option<&'a CancelToken>,
    report: &'a AcquisitionReport<'a>,
}

impl Engine {
    /// Returns the lease that an acquisition wants.
    pub(super) fn terms(&self, options: &AcquireOptions) -> LeaseTerms {
        LeaseTerms {
            mode: options.mode,
            policy: options.lease.unwrap_or(self.settings.lease),
            max_hold: options.max_hold.or(self.settings.max_hold),
        }
    }

    /// Returns the deadline of an acquisition that began at `began`: see [`AcquireRequest::deadline`].
    pub(crate) fn deadline(
        &self,
        options: &AcquireOptions,
        began: HostInstant,
    ) -> Option<HostInstant> {
        match options.wait.unwrap_or(self.settings.wait) {
            Wait::AtMost(Duration::ZERO) => None,
            Wait::AtMost(wait) => Some(began + wait),
            Wait::Forever => Some(HostInstant::NEVER),
        }
    }

    /// Returns the end of an acquisition: see [`AcquireRequest::end`].
    pub(super) fn end_of(&self, deadline: Option<HostInstant>, began: HostInstant) -> HostInstant {
        match deadline {
            None => began + self.capabilities.attempt_limit(),
            Some(deadline) => deadline + GRACE,
        }
    }

    /// Starts the thread that watches deadlines, once. It uses the engine only while it polls: the
    /// engine ends with its last keeper and guard, and the thread with the engine.
    pub(super) fn start_timer(self: &Arc<Self>) -> Result<(), Error> {
        if self.is_started.load(Ordering::Acquire) {
            return Ok(());
        }
        let (weak, background) = (Arc::downgrade(self), Arc::clone(&self.background));
        self.timer.start("lockkeeper-watch", move |tick| {
            background.with(&weak, |engine| engine.poll(tick))
        })?;
        self.is_started.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes one attempt at a name, which is repeated until the store answers it, at most for `limit`, or for the time of
    /// a single attempt if that is longer. Without a wait for outages, it is not.
    pub(crate) fn attempt_through_outage(
        self: &Arc<Self>,
        name: &LockName,
        options: &AcquireOptions,
        began: HostInstant,
        limit: Duration,
    ) -> Result<Option<Acquired>, Error> {
        let wait = self.deadline(options, began);
        let until = wait.map(|until| until.min(began + limit));
        self.acquire(name, options, (None, until), began)
    }

    /// Acquires a name until a deadline, whatever the options say of the wait. A single attempt, without a deadline, may
    /// last through an outage until another time. It begins at `began`, which is now.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        name: &LockName,
        options: &AcquireOptions,
        (deadline, attempt_until): (Option<HostInstant>, Option<HostInstant>),
        began: HostInstant,
    ) -> Result<Option<Acquired>, Error> {
        let outage = options.outage.unwrap_or(self.settings.outage);
        let terms = self.terms(options);
        options
            .check(&self.capabilities)
            .and_then(|()| self.start_timer())
            .map_err(|error| self.located(name, error))?;
        let key = Key::new(name, terms.mode);
        let report = AcquisitionReport::begin(self, name, terms.mode, began);
        let (part, busy_at) = (self.part_of(name, terms.mode), Cell::new(None));
        let closing = &self.closing;
        let own = options.cancel.as_ref();
        let own = own.map(|own| own.with_parent(&closing.token));
        let token = own.as_ref().unwrap_or(&closing.token);
        let kind = match (deadline, outage) {
            (None, Outage::Wait) if attempt_until.is_some() => WaitKind::AttemptThroughOutages,
            (None, _) => WaitKind::SingleAttempt,
            (_, Outage::Fail) => WaitKind::UntilFailure,
            (_, Outage::Wait) => WaitKind::ThroughOutages,
        };
        let rides_out = !kind.ends_at_failure();
        let mut end = self.end_of(deadline, began);
        if let Some(until) = attempt_until.filter(|_| rides_out) {
            // The store has no less time to answer than for any other single attempt.
            end = end.max(until + GRACE);
        }
        let limits = Limits {
            clock: &*self.clock,
            until: deadline.unwrap_or(end),
            cancel: Some(token),
        };
        // Changed in place: each move of it costs a lock within the process about 5 ns of 380.
        let retry = RefCell::new(Retry::new(limits, began));
        match rides_out {
            true => retry.borrow_mut().ride_out(&self.parts.get(part).health),
            // Only a lost reply is a reason to ask again, for as long as a single attempt may.
            false => retry
                .borrow_mut()
                .limit_to(self.capabilities.attempt_limit()),
        }
        let contended = || {
            let now = self.clock.now();
            busy_at.set(Some(now));
            self.answered(part, retry.borrow().asked_at());
            // What a waiter asks next is asked after this answer.
            retry.borrow_mut().begin(now);
            self.queue.contended(key);
            report.contended();
        };
        let pause_waiter = |error: &Error, answered_at: Option<HostInstant>| {
            let asked_at = match answered_at {
                Some(_) => self.clock.now(),
                None => retry.borrow().asked_at(),
            };
            // A cancel may have ended the attempt without a reply.
            if !token.is_cancelled() {
                self.note_failed_attempt(part, asked_at, end, error);
            }
            self.fail_head(key, rides_out, error);
            retry.borrow_mut().pause(error, answered_at)
        };
        let acquisition = Acquisition {
            engine: self,
            key,
            terms,
            kind,
            rides_out,
            retry: &retry,
            part,
            busy_at: &busy_at,
            cancel: options.cancel.as_ref(),
            request: AcquireRequest {
                name,
                mode: terms.mode,
                proposed_epoch: None,
                ttl: terms.policy.ttl(),
                deadline,
                end,
                started: Cell::new(began),
                owner: Cell::new(None),
                is_retry: Cell::new(false),
                is_resume: false,
                answered_at: Cell::new(None),
                cancel: Some(token),
                clock: &*self.clock,
                contended: &contended,
                retry: &pause_waiter,
            },
            report: &report,
        };
        let result = acquisition.run();
        self.closing.notify();
        let mut result = result.map_err(|error| self.located(name, error));
        report.end(&mut result);
        result
    }
}

impl<'e> Acquisition<'_, 'e> {
    #[inline(always)] // As in `release.rs`.
    fn run(&self) -> Result<Option<Acquired>, Error> {
        let (engine, request) = (self.engine, &self.request);
        if request.is_cancelled() {
            return Err(engine.cancelled());
        }
        let given = match engine.queue.enter(self.key, self.terms, self.kind) {
            Entered::Given(given) => given,
            Entered::Queued(waiter) => {
                if !self.kind.is_attempt() {
                    self.report.contended();
                }
                self.wait_in_queue(&waiter)
            }
        };
        match given {
            Given::HeadPermit => {
                let mut permit = HeadPermit::new(engine, self.key, self.part);
                let answer = self.acquire_from_store(&mut permit);
                permit.end(answer)
            }
            Given::Hold(hold, number) => {
                let acquired = Acquired::new(hold, number);
                if request.is_cancelled() {
                    engine.release_dropped(&acquired);
                    return Err(engine.cancelled());
                }
                Ok(Some(acquired))
            }
            Given::Nothing(_) if request.is_cancelled() => Err(engine.cancelled()),
            Given::Nothing(Unserved::Freed) if self.is_silent() => Err(self.silent()),
            Given::Nothing(Unserved::Busy | Unserved::Freed) => {
                self.report.contended();
                Ok(None)
            }
            Given::Nothing(Unserved::LimitMismatch { limit, held }) => {
                Err(limit_mismatch(limit, held))
            }
            Given::Nothing(Unserved::Failed(error)) => Err(self.unreachable(error)),
            Given::Nothing(Unserved::Silent) => Err(self.silent()),
        }
    }

    /// Returns the error of a thread that does not know whether the lock is free.
    fn silent(&self) -> Error {
        let text = "the store has not answered another thread of this process that asked for the lock, or released it, before, so it is not known whether it is free; try again later";
        self.unreachable(Error::new(ErrorKind::Unavailable, text))
    }

    fn is_silent(&self) -> bool {
        let part = self.engine.parts.get(self.part);
        part.is_silent(self.request.now())
    }

    /// Returns what is known of the part of the store that keeps the name.
    pub(super) fn health(&self) -> &'e Health {
        let engine: &'e Engine = self.engine;
        &engine.parts.get(self.part).health
    }

    /// Returns the error of a thread that ends behind a head: the outage's, if there is one.
    fn unreachable(&self, error: Error) -> Error {
        match self.health().outage() {
            Some((since, cause)) => {
                outlasted(cause, self.request.now().saturating_since(since), false)
            }
            None => error,
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
        let deadline = request.deadline.unwrap_or(request.end());
        let is_bounded = deadline != HostInstant::NEVER;
        let _waiting = is_bounded.then(|| engine.count_waiting(request.started()));
        let given = loop {
            let now = request.now();
            if now >= deadline || request.is_cancelled() {
                break engine.queue.leave(self.key, waiter);
            }
            let limit = is_bounded.then(|| deadline.saturating_since(now));
            if let Some(given) = waiter.wait(limit) {
                break given;
            }
        };
        let now = request.now();
        request.started.set(now);
        if now >= deadline && matches!(given, Given::HeadPermit) {
            let unserved = engine.queue.unserved(self.key, waiter);
            engine.queue.pass(self.key, None);
            return Given::Nothing(unserved);
        }
        given
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
