//! What all backends have in common between a caller and a store: asking for a name, standing in
//! line for it, and giving it back.

pub(crate) mod hold;
mod queue;
pub(crate) mod renewal;
mod retry;
mod state;
mod visits;

use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::clock::{Clock, HostInstant};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::observer::Notifier;
use crate::options::{AcquireOptions, LeasePolicy, Settings, Wait};
use crate::provider::{AcquireRequest, ErasedLease, Grant, LockProvider, Released, Renewal};
use crate::sync::run_caught;
use crate::timer::{MAX_SLEEP, Timer};
use crate::workers::Workers;

use hold::{Bounds, Hold, OnLost};
use queue::{Entered, Finished, Given, Key, Left, Queue, Ticket, Unserved};
use renewal::notify_lost;
use retry::Retry;
pub(crate) use state::Engine;

/// The longest that a release waits for the store.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// By how much an old grant's confirmation may outlast the wait: some round trips of a busy machine.
const CONFIRM_LIMIT: Duration = Duration::from_secs(1);
/// The longest that a single attempt waits for the store's answer to another thread: as long as its
/// own request would wait on the network stores, whose response time-out is 2 s.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);
const SHARDS: usize = 32;

/// Counts the requests of all keepers of the process.
static REQUESTS: AtomicU64 = AtomicU64::new(1);

impl Key for LockName {
    fn hash64(&self) -> u64 {
        LockName::hash64(self)
    }
}

/// A lease for a new guard, and the number of its hand-overs so far.
pub(crate) struct Granted {
    pub(crate) hold: Arc<Hold>,
    pub(crate) handovers: u32,
}

/// One acquisition, from when it was asked for.
struct Request<'a> {
    name: &'a LockName,
    policy: LeasePolicy,
    began: HostInstant,
    /// `None`: a single attempt.
    deadline: Option<HostInstant>,
    cancel: Option<&'a CancelToken>,
    /// Whether the observer heard that it is contended.
    told: Cell<bool>,
}

impl Request<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }
}

/// The head's handovers: passed on also when the provider panics.
struct HeadPermit<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    over: bool,
}

impl HeadPermit<'_> {
    fn pass(mut self, trouble: Option<Error>) {
        self.over = true;
        self.engine.queue.pass(self.name, trouble);
    }

    fn hold(mut self, hold: &Arc<Hold>) {
        self.over = true;
        let due = hold.due();
        self.engine.queue.hold(self.name, Arc::clone(hold), due);
        self.engine.timer.note(HostInstant::from_nanos(due));
    }
}

impl Drop for HeadPermit<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.engine.queue.pass(self.name, None);
        }
    }
}

impl Engine {
    pub(crate) fn open(
        provider: Arc<dyn LockProvider>,
        settings: Settings,
        clock: Arc<dyn Clock>,
        notifier: Notifier,
    ) -> Arc<Shared> {
        let timer = Timer::new(Arc::clone(&clock));
        let engine = Arc::new(Self {
            capabilities: provider.capabilities(),
            provider,
            settings,
            clock,
            notifier,
            queue: Queue::new(SHARDS),
            timer,
            workers: Workers::new(),
            visits: Arc::default(),
            waiting: AtomicUsize::new(0),
            started: AtomicBool::new(false),
        });
        Arc::new(Shared(engine))
    }

    /// How much earlier than the store a guard calls itself lost.
    pub(crate) fn margin(&self, ttl: Duration) -> Duration {
        let usual = (ttl / 10).min(Duration::from_secs(1));
        self.settings.margin.unwrap_or(usual).min(ttl / 2)
    }

    pub(crate) fn acquire(
        self: &Arc<Self>,
        name: &LockName,
        options: &AcquireOptions,
    ) -> Result<Option<Granted>, Error> {
        let began = self.clock.now();
        let wait = options.wait.unwrap_or(self.settings.wait);
        let policy = options.lease.unwrap_or(self.settings.lease);
        let checked = wait.check().and(policy.check(&self.capabilities));
        checked.map_err(|error| error.with_name(name))?;
        let request = Request {
            name,
            policy,
            began,
            deadline: match wait {
                Wait::AtMost(Duration::ZERO) => None,
                Wait::AtMost(wait) => Some(began + wait),
                Wait::Forever => Some(HostInstant::NEVER),
            },
            cancel: options.cancel.as_ref(),
            told: Cell::new(false),
        };
        let result = self.start_and_enter(&request);
        if self.notifier.is_some() {
            self.notify_acquired(&request, &result);
        }
        result
    }

    fn start_and_enter(self: &Arc<Self>, request: &Request<'_>) -> Result<Option<Granted>, Error> {
        if !self.started.load(Ordering::Acquire) {
            renewal::start(self)?;
            self.started.store(true, Ordering::Release);
        }
        if request.is_cancelled() {
            return Err(cancelled(request.name));
        }
        match self
            .queue
            .enter(request.name, request.policy, request.deadline.is_none())
        {
            Entered::HeadPermit => self.ask(request, request.began),
            Entered::Busy => {
                self.notify_contended(request);
                Ok(None)
            }
            Entered::Queued(ticket) => {
                if request.deadline.is_some() {
                    self.notify_contended(request);
                }
                self.wait_in_queue(request, &ticket)
            }
        }
    }

    /// Once an acquisition.
    fn notify_contended(&self, request: &Request<'_>) {
        if !request.told.replace(true) {
            self.notifier.tell(|o| o.contended(request.name));
        }
    }

    fn notify_acquired(&self, request: &Request<'_>, result: &Result<Option<Granted>, Error>) {
        let waited = self.clock.now().saturating_since(request.began);
        match result {
            Ok(Some(granted)) => {
                if let Ok(token) = granted.hold.token(granted.handovers) {
                    let handed = granted.handovers > 0;
                    self.notifier
                        .tell(|o| o.acquired(request.name, token, waited, handed));
                }
            }
            Ok(None) => self
                .notifier
                .tell(|o| o.not_acquired(request.name, waited, None)),
            Err(error) => self
                .notifier
                .tell(|o| o.not_acquired(request.name, waited, Some(error))),
        }
    }

    fn wait_in_queue(
        &self,
        request: &Request<'_>,
        ticket: &Ticket<Hold, LeasePolicy, Error>,
    ) -> Result<Option<Granted>, Error> {
        let _wake = request.cancel.map(|token| {
            let ticket = ticket.clone();
            token.on_cancel(move || ticket.unpark())
        });
        let deadline = request.deadline.unwrap_or(request.began + ATTEMPT_LIMIT);
        let _waiting = (deadline != HostInstant::NEVER).then(|| self.count_waiting(request.began));
        loop {
            let now = self.clock.now();
            let given = if now >= deadline || request.is_cancelled() {
                match self.queue.leave(request.name, ticket) {
                    Left::Given(given) => given,
                    Left::Gone(_) if request.is_cancelled() => return Err(cancelled(request.name)),
                    Left::Gone(unserved) => return self.unserved(request, unserved),
                }
            } else {
                let limit =
                    (deadline != HostInstant::NEVER).then(|| deadline.saturating_since(now));
                match ticket.wait(limit) {
                    Some(given) => given,
                    None => continue,
                }
            };
            return match given {
                Given::HeadPermit => {
                    let now = self.clock.now();
                    let over = request.deadline.is_some_and(|deadline| now >= deadline);
                    if over && !request.is_cancelled() {
                        let unserved = self.queue.decline(request.name, ticket);
                        return self.unserved(request, unserved);
                    }
                    self.ask(request, now)
                }
                Given::Busy => {
                    self.notify_contended(request);
                    Ok(None)
                }
                Given::Failed(error) => Err(error),
                Given::Hold(hold) => {
                    let granted = Granted {
                        handovers: hold.handovers(),
                        hold,
                    };
                    if request.is_cancelled() {
                        let _ = self.release(&granted);
                        return Err(cancelled(request.name));
                    }
                    Ok(Some(granted))
                }
            };
        }
    }

    /// Counts a thread that waits since `now` until the result is dropped: meanwhile the watching
    /// thread wakes it when the clock jumps.
    fn count_waiting(&self, now: HostInstant) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.timer.note(now + MAX_SLEEP);
        Waiting(&self.waiting)
    }

    /// The answer to a waiter that got nothing in its time.
    fn unserved(
        &self,
        request: &Request<'_>,
        unserved: Unserved<Error>,
    ) -> Result<Option<Granted>, Error> {
        match unserved {
            Unserved::Busy => Ok(None),
            Unserved::Failed(error) => Err(error),
            Unserved::Silent => Err(Error::new(
                ErrorKind::Unavailable,
                "the store has not answered another thread of this process that asked for the lock before, so it is not known whether it is free; try again later",
            )
            .with_name(request.name)
            .with_backend(self.provider.backend())),
        }
    }

    /// The head of the line asks the store.
    fn ask(&self, request: &Request<'_>, now: HostInstant) -> Result<Option<Granted>, Error> {
        let permit = HeadPermit {
            engine: self,
            name: request.name,
            over: false,
        };
        if request.is_cancelled() {
            return Err(cancelled(request.name));
        }
        let backend = self.provider.backend();
        let placed = |error: Error| error.with_name(request.name).with_backend(backend);
        let was_busy = Cell::new(false);
        let contended = || {
            // A single attempt is not repeated for it.
            was_busy.set(request.deadline.is_some());
            self.queue.contended(request.name);
            self.notify_contended(request);
        };
        let asked = AcquireRequest {
            name: request.name,
            ttl: request.policy.ttl(),
            deadline: request.deadline,
            started: now,
            requests: &REQUESTS,
            owner: Cell::new(None),
            is_retry: Cell::new(false),
            cancel: request.cancel,
            clock: &*self.clock,
            contended: &contended,
        };
        let until = request
            .deadline
            .unwrap_or(now + self.capabilities.attempt_limit());
        let mut retry = Retry::new(&*self.clock, until, request.cancel);
        loop {
            asked.is_retry.set(retry.lost_reply().is_some());
            let grant = match self.provider.acquire(&asked) {
                Ok(Some(grant)) => grant,
                Ok(None) => {
                    // A cancelled request need not have seen a holder.
                    let is_cancelled = request.is_cancelled();
                    if is_cancelled && retry.lost_reply().is_some() {
                        self.provider.abandon(&asked);
                    }
                    if !is_cancelled {
                        contended();
                    }
                    permit.pass(None);
                    return if is_cancelled {
                        Err(cancelled(request.name))
                    } else {
                        Ok(None)
                    };
                }
                Err(error) => {
                    let Err(error) = retry.after(error, was_busy.get()) else {
                        continue;
                    };
                    if retry.lost_reply().is_some() {
                        self.provider.abandon(&asked);
                    }
                    if request.is_cancelled() {
                        permit.pass(None);
                        return Err(cancelled(request.name));
                    }
                    let error = placed(error);
                    permit.pass(Some(error.clone()));
                    return Err(error);
                }
            };
            match self.confirm_grant(request, grant, asked.started()) {
                Ok(Some(hold)) => {
                    permit.hold(&hold);
                    return Ok(Some(Granted { hold, handovers: 0 }));
                }
                // Granted and lost again before it was seen: no other holder was seen, so
                // that is no "busy". Ask again while there is time.
                Ok(None) => {
                    let now = self.clock.now();
                    if request.deadline.is_some_and(|deadline| now >= deadline) {
                        return Err(placed(Error::new(
                            ErrorKind::Unavailable,
                            "the store granted the lock, and its answer came after that lease had ended; try again, with a longer ttl where this happens often",
                        )));
                    }
                }
                Err(error) => {
                    let error = placed(error);
                    permit.pass((error.kind() != ErrorKind::Cancelled).then(|| error.clone()));
                    return Err(error);
                }
            }
        }
    }

    /// Makes a hold of a grant, if the lease is as fresh as it seems.
    fn confirm_grant(
        &self,
        request: &Request<'_>,
        grant: Grant<ErasedLease>,
        started: HostInstant,
    ) -> Result<Option<Arc<Hold>>, Error> {
        let Grant {
            mut lease,
            epoch,
            mut asked_at,
        } = grant;
        let ttl = request.policy.ttl();
        let margin = self.margin(ttl);
        if request.is_cancelled() {
            self.give_back(lease);
            return Err(cancelled(request.name));
        }
        // See `AcquireRequest::started`.
        let mut now = if asked_at == started {
            started
        } else {
            self.clock.now()
        };
        // The store did the waiting, or this process was stopped while the reply lay there.
        if now.saturating_since(asked_at) > margin {
            asked_at = now;
            // The caller waits for this answer, too, and not for the rest of a whole lease.
            let ends = request.deadline.unwrap_or(now).max(now) + CONFIRM_LIMIT;
            match self
                .provider
                .renew(&mut lease, ttl, ends.min(asked_at + ttl))
            {
                Ok(Renewal::Renewed) => {}
                Ok(Renewal::Lost) => return Ok(None),
                Err(error) => {
                    self.give_back(lease);
                    return Err(error);
                }
            }
            now = self.clock.now();
        }
        let hold = Hold::new(
            request.name.clone(),
            request.policy,
            margin,
            lease,
            epoch,
            asked_at,
            now,
        );
        if let Err(error) = hold.token(0) {
            if let Ok(Some(lease)) = hold.take_to_release(now, &*self.clock) {
                self.give_back(lease);
            }
            return Err(error);
        }
        Ok(Some(Arc::new(hold)))
    }

    fn give_back(&self, mut lease: ErasedLease) {
        let deadline = self.clock.now() + RELEASE_LIMIT;
        let _ = self.provider.release(&mut lease, deadline);
    }

    /// Ends a guard: its lease goes to the next waiter, or back to the store.
    pub(crate) fn release(&self, granted: &Granted) -> Result<Released, Error> {
        let result = self.finish(granted);
        if self.notifier.is_some()
            && let Ok(token) = granted.hold.token(granted.handovers)
        {
            let name = &granted.hold.name;
            self.notifier.tell(|o| o.released(name, token, &result));
        }
        result
    }

    fn finish(&self, granted: &Granted) -> Result<Released, Error> {
        let hold = &granted.hold;
        let now = self.clock.now();
        let bounds = Bounds {
            count: self.settings.handover_max,
            time: self.settings.handover_time,
        };
        let finished = self.queue.finish(&hold.name, hold, |wish| {
            let fits = hold.fits(*wish, now, &bounds);
            if fits {
                hold.count_handover();
            }
            fits
        });
        if finished == Finished::HandedOver {
            forget(hold.end_handover(granted.handovers));
            return Ok(Released::Done);
        }
        let ended = hold.end(now);
        let result = self.return_lease(hold, ended.lease, now);
        if finished == Finished::Release {
            self.queue.pass(&hold.name, None);
        }
        // The user's code comes last: it may lock this very name.
        forget(ended.callbacks);
        if !ended.in_time && hold.must_notify_loss() {
            notify_lost(self, hold);
        }
        match result {
            Ok(_) if !ended.in_time => Ok(Released::AlreadyLost),
            result => result.map_err(|error| {
                error
                    .with_name(&hold.name)
                    .with_backend(self.provider.backend())
            }),
        }
    }

    fn return_lease(
        &self,
        hold: &Hold,
        lease: Option<ErasedLease>,
        now: HostInstant,
    ) -> Result<Released, Error> {
        let deadline = now + RELEASE_LIMIT.min(hold.policy.ttl());
        let lease = match lease {
            Some(lease) => Some(lease),
            None => hold.take_to_release(deadline, &*self.clock)?,
        };
        match lease {
            None => Ok(Released::AlreadyLost),
            // A guard may be dropped while its thread panics; a second panic would abort.
            Some(mut lease) => catch_unwind(AssertUnwindSafe(|| {
                self.release_lease(&mut lease, deadline)
            }))
                .unwrap_or_else(|_| {
                    Err(Error::new(
                        ErrorKind::Unknown,
                        "the backend panicked while it released; the store frees the lock after its ttl",
                    ))
                }),
        }
    }
}

impl Engine {
    /// Releases a lease, and asks again while time is left if the reply was lost.
    fn release_lease(
        &self,
        lease: &mut ErasedLease,
        deadline: HostInstant,
    ) -> Result<Released, Error> {
        let until = deadline.min(self.clock.now() + ATTEMPT_LIMIT);
        let mut retry = Retry::new(&*self.clock, until, None);
        loop {
            match (self.provider.release(lease, deadline), retry.lost_reply()) {
                // The first request may have released the lock, or may have found that it was lost.
                (Ok(Released::AlreadyLost), Some(lost)) => {
                    return Err(Error::new(
                        ErrorKind::Unknown,
                        "the reply to the release did not come, and the lock was gone when it was asked for again: it was released, or it had been lost before; where that matters, have the data refuse smaller tokens",
                    )
                    .with_source(lost.clone()));
                }
                (Ok(released), _) => return Ok(released),
                (Err(error), _) => retry.after(error, false)?,
            }
        }
    }
}

/// A thread that waits in the queue with a deadline.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What keepers and guards share: the engine, closed when the last of them goes.
pub(crate) struct Shared(Arc<Engine>);

impl Deref for Shared {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.visits.close();
        self.timer.stop();
        self.workers.stop();
        self.visits.wait();
    }
}

/// Drops callbacks that are not to be called any more, with what the user's code has put into them.
fn forget(callbacks: Vec<(u32, OnLost)>) {
    for callback in callbacks {
        run_caught(|| drop(callback));
    }
}

fn cancelled(name: &LockName) -> Error {
    Error::new(ErrorKind::Cancelled, "the wait for the lock was cancelled").with_name(name)
}
