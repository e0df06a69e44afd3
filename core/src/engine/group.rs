//! Group commit: what threads ask while a request is under way goes to the store together.
//!
//! A thread that finds no request under way asks alone, so that a lone thread waits for no other one. Queued requests
//! are sent by threads of the keeper, which no caller's deadline ends. A caller that is due leaves, and what comes
//! back for it is released. All that is so for each part of the store by itself.

use std::cell::Cell;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, ErasedLease, Grant, Released, Renewal};
use crate::engine::timer::MAX_SLEEP;
use crate::engine::workers::MAX_QUEUED;
use crate::error::{Error, ErrorKind};
use crate::sync::run_caught;

use super::batch::{self, Batches, Kind, NoReply, Stopped, UnderWay, wake_callers};
use super::exchange::{Attempt, AttemptAnswer, LeaseAnswer, LeaseAsk, LeaseVerb};
use super::hold::Hold;
use super::hold::dropped::DroppedGuard;
use super::hold::lease::{Asked, Unwanted};
use super::release_lease::found_after;
use super::{Engine, Job, JobKind};

/// The attempts and the questions about leases that travel together.
pub(super) type Requests = Batches<Attempts, Leases>;

pub(super) enum Attempts {}

impl Kind for Attempts {
    type Ask = Attempt;
    type Reply = AttemptAnswer;
    /// The ttl of a grant that is given back.
    type Left = Duration;
}

pub(super) enum Leases {}

impl Kind for Leases {
    type Ask = LeaseAsk;
    type Reply = (ErasedLease, LeaseAnswer);
    type Left = LeftLease;
}

/// What becomes of a lease whose caller does not wait any more.
pub(super) enum LeftLease {
    /// It is released again if the store did not answer, and then the end of the guard that was dropped is
    /// reported.
    Release {
        ttl: Duration,
        guard: Option<Box<DroppedGuard>>,
    },
    /// It comes back to its hold.
    Renewal { hold: Arc<Hold>, asked: Asked },
    /// It was to confirm a grant, and the lease is released.
    Confirmation { ttl: Duration },
}

/// The answer about a lease.
pub(super) enum LeaseReply {
    Answered(ErasedLease, LeaseAnswer),
    /// The caller's time is over, and the request is under way: [leave](Engine::leave_lease) it.
    UnderWay(Arc<batch::Entry<Leases>>),
}

/// The part and the number of a request that its own thread makes while no other one is under way.
#[derive(Default)]
pub(super) struct Alone(Cell<Option<(usize, u64)>>);

/// A request that goes with the next batch of a part of the store.
pub(super) struct Queued<K: Kind> {
    entry: Arc<batch::Entry<K>>,
    part: usize,
    /// The number of what was under way when it was queued.
    number: Cell<u64>,
}

impl Engine {
    /// Makes one attempt for an acquisition of a name of this part, which may wait in the store.
    pub(super) fn request_name(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        (part, asked_at): (usize, HostInstant),
        alone: &Alone,
        is_cancellable: bool,
    ) -> Result<Option<Grant<ErasedLease>>, Error> {
        // No cancel ends a call of the provider that gets no reply, so a thread of the keeper makes it.
        let is_left_to_keeper = is_cancellable && self.capabilities.batch() > 1;
        if is_left_to_keeper || !self.begin_alone(part, alone) {
            let waits = request.deadline.is_some_and(|at| request.now() < at);
            match self.attempt_in_batch(request, part) {
                Ok(None) if waits && !request.is_cancelled() => request.contended(),
                // A batch does not wait for a connection.
                Err(error) if error.kind() == ErrorKind::PoolExhausted => {}
                answer => return answer,
            }
        }
        let mut answer = self.provider.acquire(request);
        note_part(&mut answer, part);
        self.note_attempt(request, (part, asked_at), &answer);
        self.end_alone(alone);
        answer
    }

    fn attempt_in_batch(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        part: usize,
    ) -> Result<Option<Grant<ErasedLease>>, Error> {
        let queued = self.attempt_of(request, part);
        let requests = &self.parts.get(part).requests;
        let under_way = requests.push_first(slice::from_ref(&queued.entry));
        queued.number.set(self.follow(part, under_way));
        self.wait_for_grant(request, &queued)
    }

    /// Returns an attempt that is to go with a batch.
    pub(super) fn attempt_of(&self, request: &AcquireRequest<'_>, part: usize) -> Queued<Attempts> {
        self.queued(part, Attempt::of(request, request.end()))
    }

    fn queued<K: Kind>(&self, part: usize, ask: K::Ask) -> Queued<K> {
        let callers = self.parts.get(part).requests.callers();
        Queued {
            entry: batch::Entry::new(ask, callers),
            part,
            number: Cell::new(0),
        }
    }

    /// Adds attempts to the next batch of each part of the store.
    pub(super) fn send_attempts(self: &Arc<Self>, attempts: &[&Queued<Attempts>]) {
        self.send_together(attempts, Requests::push_first);
    }

    /// Adds requests to the next batch of each part of the store. `push` puts them into its queue.
    fn send_together<K: Kind>(
        self: &Arc<Self>,
        all: &[&Queued<K>],
        push: impl Fn(&Requests, &[Arc<batch::Entry<K>>]) -> UnderWay,
    ) {
        for (number, part) in self.parts.iter().enumerate() {
            let of_part: Vec<_> = all.iter().filter(|it| it.part == number).collect();
            let entries: Vec<_> = of_part.iter().map(|it| Arc::clone(&it.entry)).collect();
            if !entries.is_empty() {
                let under_way = self.follow(number, push(&part.requests, &entries));
                of_part.iter().for_each(|it| it.number.set(under_way));
            }
        }
    }

    /// Waits for the answer to an attempt that goes with a batch.
    pub(super) fn wait_for_grant(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        queued: &Queued<Attempts>,
    ) -> AttemptAnswer {
        let entry = &queued.entry;
        match self.wait_for_reply(queued, request.end(), request.cancel) {
            Waited::Answered(answer) => answer,
            Waited::NotSent(_) if request.is_cancelled() => Ok(None),
            Waited::NotSent(_) => Err(not_sent()),
            Waited::Sent => match entry.leave(request.ttl) {
                Some((answer, _)) => answer,
                // Its reply may be lost: then what it was granted has to be freed, also after a cancel.
                None => Err(unanswered()),
            },
        }
    }

    /// Asks the store about a lease, and waits for the answer until the deadline.
    #[inline(always)] // As what it is called by: see `release.rs`.
    pub(super) fn ask_about(self: &Arc<Self>, mut ask: LeaseAsk) -> LeaseReply {
        let alone = Alone::default();
        if self.begin_alone(ask.lease.part, &alone) {
            let answer = self.ask_directly(&mut ask);
            self.note_lease(&ask, &answer);
            self.end_alone(&alone);
            return LeaseReply::Answered(ask.lease, answer);
        }
        self.ask_in_batch(ask, None)
    }

    /// Asks the store about a lease, in a request of its own.
    #[inline(always)]
    pub(super) fn ask_directly(&self, ask: &mut LeaseAsk) -> LeaseAnswer {
        let (lease, deadline) = (&mut ask.lease, ask.deadline);
        match ask.verb {
            LeaseVerb::Renew { ttl } => {
                // The caller has the lease only lent from its hold, which would wait for it forever.
                let answer = run_caught(|| self.provider.renew(lease, ttl, deadline));
                let answer = answer.unwrap_or_else(|| {
                    let text = "the backend panicked while it renewed the lease";
                    Err(Error::new(ErrorKind::Unknown, text))
                });
                answer.map(|found| found == Renewal::Renewed)
            }
            LeaseVerb::Release => {
                let answer = self.provider.release(lease, deadline);
                answer.map(|found| found == Released::Done)
            }
        }
    }

    /// Sends a request about a lease by the keeper's threads, and waits for the answer until the deadline or a cancel.
    pub(super) fn ask_in_batch(
        self: &Arc<Self>,
        ask: LeaseAsk,
        cancel: Option<&CancelToken>,
    ) -> LeaseReply {
        let (part, deadline) = (ask.lease.part, ask.deadline);
        let queued = self.queued::<Leases>(part, ask);
        let requests = &self.parts.get(part).requests;
        let under_way = requests.push_second(slice::from_ref(&queued.entry));
        queued.number.set(self.follow(part, under_way));
        self.wait_for_lease(queued, deadline, cancel)
    }

    /// Asks the store about several leases in one batch for each part, and waits for the answers until the deadline.
    pub(super) fn ask_together(
        self: &Arc<Self>,
        asks: Vec<LeaseAsk>,
        deadline: HostInstant,
    ) -> impl Iterator<Item = LeaseReply> {
        let queued = asks
            .into_iter()
            .map(|ask| self.queued::<Leases>(ask.lease.part, ask));
        let queued: Vec<_> = queued.collect();
        let all: Vec<_> = queued.iter().collect();
        self.send_together(&all, Requests::push_second);
        let queued = queued.into_iter();
        queued.map(move |queued| self.wait_for_lease(queued, deadline, None))
    }

    /// Waits for the answer about a lease that goes with a batch.
    fn wait_for_lease(
        self: &Arc<Self>,
        queued: Queued<Leases>,
        deadline: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> LeaseReply {
        match self.wait_for_reply(&queued, deadline, cancel) {
            Waited::Answered((lease, answer)) => LeaseReply::Answered(lease, answer),
            Waited::NotSent(ask) => LeaseReply::Answered(ask.lease, Err(not_sent())),
            Waited::Sent => LeaseReply::UnderWay(queued.entry),
        }
    }

    /// Waits for the reply until `until` or a cancel.
    fn wait_for_reply<K>(
        self: &Arc<Self>,
        queued: &Queued<K>,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Waited<K>
    where
        K: Kind<Ask: Send, Reply: Send, Left: Send> + 'static,
    {
        let Queued {
            entry,
            part,
            number,
        } = queued;
        let _wake = cancel.map(|cancel| {
            let entry = Arc::clone(entry);
            cancel.on_cancel(move || entry.unpark())
        });
        loop {
            let left = until.saturating_since(self.clock.now());
            if left.is_zero() || cancel.is_some_and(CancelToken::is_cancelled) {
                return match entry.stop() {
                    Stopped::NotSent(ask) => Waited::NotSent(ask),
                    Stopped::Sent => Waited::Sent,
                    Stopped::Answered(reply) => Waited::Answered(reply),
                };
            }
            let limit = match entry.is_queued() {
                true => left.min(MAX_QUEUED),
                // A Condvar's time-out does not advance while the host is suspended.
                false => left.min(MAX_SLEEP),
            };
            match entry.wait(Some(limit)) {
                Ok(reply) => return Waited::Answered(reply),
                Err(NoReply::TimedOut) if entry.is_queued() => {
                    let requests = &self.parts.get(*part).requests;
                    number.set(self.follow(*part, requests.overtake(number.get())));
                    // If the threads hang, this brings in more of them.
                    self.start_work(Vec::new());
                }
                Err(_) => {}
            }
        }
    }

    /// Returns whether the calling thread may ask the store at once, alone.
    #[inline(always)]
    fn begin_alone(&self, part: usize, alone: &Alone) -> bool {
        if self.capabilities.batch() == 1 {
            return true;
        }
        let number = self.parts.get(part).requests.begin_alone();
        alone.0.set(number.map(|number| (part, number)));
        number.is_some()
    }

    /// Ends a request that was made alone, or lets others pass it while it waits in the store.
    #[inline(always)]
    pub(super) fn end_alone(self: &Arc<Self>, alone: &Alone) {
        if let Some((part, number)) = alone.0.take()
            && let Some(number) = self.parts.get(part).requests.end_alone(number)
        {
            self.start_sender(part, number);
        }
    }

    /// Returns the number of what is under way, after a thread of the keeper has begun with it if it must.
    fn follow(self: &Arc<Self>, part: usize, under_way: UnderWay) -> u64 {
        match under_way {
            UnderWay::Start(number) => {
                self.start_sender(part, number);
                number
            }
            UnderWay::Other(number) => number,
        }
    }

    /// Schedules the queue of a part on the keeper's threads.
    fn start_sender(self: &Arc<Self>, part: usize, number: u64) {
        self.start_work(vec![(JobKind::Send(part), Job::Send { part, number })]);
    }

    /// Sends the queue of a part, batch after batch, until it is empty.
    pub(super) fn send_batches(self: &Arc<Self>, part: usize, mut number: u64) {
        let (limit, requests) = (self.capabilities.batch(), &self.parts.get(part).requests);
        while let Some((attempts, asks)) = requests.next(&mut number, limit) {
            let (callers, attempts): (Vec<_>, Vec<_>) = attempts.into_iter().unzip();
            let (holders, asks): (Vec<_>, Vec<_>) = asks.into_iter().unzip();
            let (granted, answers) = self.exchange(part, attempts, asks);
            let (mut unwanted, mut left_leases) = (Vec::new(), Vec::new());
            for (entry, (_, mut answer)) in callers.iter().zip(granted) {
                note_part(&mut answer, part);
                unwanted.extend(entry.answer(answer));
            }
            for (entry, (ask, answer)) in holders.iter().zip(answers) {
                left_leases.extend(entry.answer((ask.lease, answer)));
            }
            wake_callers(&callers, &holders);
            for (answer, ttl) in unwanted {
                self.give_back(answer, ttl);
            }
            for (reply, left) in left_leases {
                self.bring_home(reply, left);
            }
        }
    }

    /// Leaves a question about a lease that is under way.
    pub(super) fn leave_lease(self: &Arc<Self>, entry: &batch::Entry<Leases>, left: LeftLease) {
        if let Some((reply, left)) = entry.leave(left) {
            self.bring_home(reply, left);
        }
    }

    /// Releases a grant whose caller has gone.
    fn give_back(self: &Arc<Self>, answer: AttemptAnswer, ttl: Duration) {
        if let Ok(Some(Grant { lease, .. })) = answer {
            self.release_unwanted(Unwanted { lease, guard: None }, ttl);
        }
    }

    /// Brings the lease of a caller that has gone to where it belongs.
    fn bring_home(self: &Arc<Self>, reply: (ErasedLease, LeaseAnswer), left: LeftLease) {
        let (lease, answer) = reply;
        match left {
            LeftLease::Renewal { hold, asked } => {
                self.apply_renewal(&hold, lease, &answer.map(renewal), &asked);
            }
            // The store has ended the lease by itself.
            LeftLease::Confirmation { .. } if matches!(answer, Ok(false)) => {}
            LeftLease::Confirmation { ttl } => {
                self.release_unwanted(Unwanted { lease, guard: None }, ttl);
            }
            LeftLease::Release { ttl, guard } => match (answer, guard) {
                (Ok(was_held), Some(guard)) => {
                    let found = found_after(released(was_held), guard.lost_reply.as_ref());
                    self.end_release(Some(guard), found);
                }
                (Ok(_), None) => {}
                (Err(error), mut guard) => {
                    if let Some(guard) = &mut guard
                        && error.kind() == ErrorKind::Unknown
                    {
                        guard.lost_reply.get_or_insert(error);
                    }
                    self.release_unwanted(Unwanted { lease, guard }, ttl);
                }
            },
        }
    }
}

/// How a wait for a reply ended.
enum Waited<K: Kind> {
    Answered(K::Reply),
    NotSent(K::Ask),
    /// The request is under way.
    Sent,
}

/// Notes which part of the store granted a lease.
fn note_part(answer: &mut AttemptAnswer, part: usize) {
    if let Ok(Some(grant)) = answer {
        grant.lease.part = part;
    }
}

/// Returns what a renewal found.
pub(super) fn renewal(is_held: bool) -> Renewal {
    match is_held {
        true => Renewal::Renewed,
        false => Renewal::Lost,
    }
}

/// Returns what a release found.
pub(super) fn released(was_held: bool) -> Released {
    match was_held {
        true => Released::Done,
        false => Released::AlreadyLost,
    }
}

fn not_sent() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store did not answer the requests of other threads of this process in time, so this one was not sent; try again later",
    )
}

pub(super) fn unanswered() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the store was asked and did not answer in time; what it grants is given back",
    )
}
