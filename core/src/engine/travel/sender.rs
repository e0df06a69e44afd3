//! Sends requests to a part of the store, and waits for the answers.
//!
//! A thread that finds nothing under way asks alone, so that a lone thread waits for no other one. Queued requests
//! are sent by threads of the keeper, which no caller's deadline ends. A caller that is due leaves, and what comes
//! back for it is settled by the thread that gets it. All that is so for each part of the store by itself.

use std::sync::Arc;

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, ErasedLease, Grant};
use crate::engine::timer::MAX_SLEEP;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

use super::super::threads::MAX_QUEUED;
use super::super::{Engine, Job, JobKind};
use super::request::{
    Answer, Attempt, AttemptAnswer, Found, LeaseRequest, Release, Request, Settlement,
};
use super::request_queue::{
    NoAnswer, QueuedRequest, RequestQueue, Stopped, Taken, Travel, wake_callers,
};

/// The queue of a part.
pub(crate) type Requests = RequestQueue<ToStore>;

pub(crate) type Entry = QueuedRequest<ToStore>;

pub(crate) enum ToStore {}

impl Travel for ToStore {
    type Request = Request;
    type Answer = Answer;
    type Settlement = Settlement;
}

/// The reply to a request.
pub(crate) enum Reply {
    Answered(Answer),
    /// The caller's time is over, and the request is under way: [leave](Engine::leave) it.
    UnderWay(Arc<Entry>),
}

/// A request that goes with the next batch of a part of the store.
pub(crate) struct Queued {
    entry: Arc<Entry>,
    part: usize,
}

/// What requests of a part wait for, and since when.
#[derive(Default)]
pub(crate) struct WaitsFor {
    number: u64,
    since: HostInstant,
}

impl Engine {
    /// Makes one attempt for an acquisition of a name of this part, which may wait in the store.
    pub(crate) fn attempt_or_wait(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        (part, asked_at): (usize, HostInstant),
        is_cancellable: bool,
    ) -> Result<Option<Grant<ErasedLease>>, Error> {
        if self.capabilities.batch() > 1 {
            let waits = request.deadline.is_some_and(|at| request.now() < at);
            let attempt = Request::Attempt(Attempt::of(request, request.end()));
            let asked = match is_cancellable {
                // No cancel ends a call of the provider that gets no reply, so a thread of the keeper makes it.
                true => Err(attempt),
                false => self.ask_alone(part, attempt),
            };
            let answer = match asked {
                Ok(answer) => answer.granted(),
                Err(attempt) => {
                    let queued = self.queued(part, attempt);
                    self.send(&[&queued]);
                    self.wait_for_grant(request, &queued)
                }
            };
            match answer {
                Ok(None) if waits && !request.is_cancelled() => request.contended(),
                // A batch does not wait for a connection.
                Err(error) if error.kind() == ErrorKind::PoolExhausted => {}
                answer => return answer,
            }
        }
        let mut answer = self.provider.acquire(request);
        if let Ok(Some(grant)) = &mut answer {
            grant.lease.part = part;
        }
        self.note_attempt(request, (part, asked_at), &answer);
        answer
    }

    /// Returns an attempt that is to go with a batch.
    pub(crate) fn attempt_of(&self, request: &AcquireRequest<'_>, part: usize) -> Queued {
        self.queued(part, Request::Attempt(Attempt::of(request, request.end())))
    }

    fn queued(&self, part: usize, request: Request) -> Queued {
        let (name, callers) = (request.name(), self.parts.get(part).requests.callers());
        Queued {
            entry: Entry::new(request, name, callers),
            part,
        }
    }

    /// Returns a release for which no caller waits.
    pub(crate) fn unattended(&self, lease: ErasedLease, release: Release) -> Queued {
        let (part, deadline) = (release.part, release.end_from(self.clock.now()));
        let request = Request::Lease(LeaseRequest::release(lease, deadline));
        Queued {
            entry: Entry::unattended(request, Settlement::Release(release)),
            part,
        }
    }

    /// Adds requests to the next batch of each part of the store.
    pub(crate) fn send(self: &Arc<Self>, all: &[&Queued]) {
        for (number, part) in self.parts.iter().enumerate() {
            let of_part = all.iter().filter(|it| it.part == number);
            let entries: Vec<_> = of_part.map(|it| Arc::clone(&it.entry)).collect();
            if !entries.is_empty() {
                self.start_sender(number, part.requests.push(&entries));
            }
        }
    }

    /// Adds requests for which no caller waits.
    pub(crate) fn send_unattended(self: &Arc<Self>, all: &[&Queued]) {
        self.send(all);
        // It overtakes what hangs.
        self.timer.note(self.clock.now() + MAX_QUEUED);
    }

    /// Waits for the answer to an attempt that goes with a batch.
    pub(crate) fn wait_for_grant(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        queued: &Queued,
    ) -> AttemptAnswer {
        let entry = &queued.entry;
        match self.wait_for_answer(queued, request.end(), request.cancel) {
            Stopped::Answered(answer) => answer.granted(),
            Stopped::NotSent(_) if request.is_cancelled() => Ok(None),
            Stopped::NotSent(_) => Err(not_sent()),
            Stopped::Sent => match entry.leave(match request.is_resume() {
                true => Settlement::Leave,
                false => Settlement::GiveBack(request.ttl),
            }) {
                Some((answer, _)) => answer.granted(),
                // Its reply may be lost: then what it was granted has to be freed, also after a cancel.
                None => Err(unanswered()),
            },
        }
    }

    /// Asks the store about a lease, and waits for the answer until the deadline.
    pub(crate) fn ask(self: &Arc<Self>, request: LeaseRequest) -> Reply {
        let (part, deadline) = (request.lease.part, request.deadline);
        match self.ask_alone(part, Request::Lease(request)) {
            Ok(answer) => Reply::Answered(answer),
            Err(request) => {
                let queued = self.queued(part, request);
                self.send(&[&queued]);
                self.wait_for_reply(queued, deadline, None)
            }
        }
    }

    /// Asks the store about a lease by a thread of the keeper, and waits for the answer until the deadline or a cancel.
    pub(crate) fn ask_by_keeper(
        self: &Arc<Self>,
        request: LeaseRequest,
        cancel: Option<&CancelToken>,
    ) -> Reply {
        let deadline = request.deadline;
        let queued = self.queued(request.lease.part, Request::Lease(request));
        self.send(&[&queued]);
        self.wait_for_reply(queued, deadline, cancel)
    }

    fn wait_for_reply(
        self: &Arc<Self>,
        queued: Queued,
        deadline: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Reply {
        match self.wait_for_answer(&queued, deadline, cancel) {
            Stopped::Answered(answer) => Reply::Answered(answer),
            Stopped::NotSent(request) => Reply::Answered(request.answered(Err(not_sent()))),
            Stopped::Sent => Reply::UnderWay(queued.entry),
        }
    }

    /// Waits for the answer until `until` or a cancel.
    fn wait_for_answer(
        self: &Arc<Self>,
        queued: &Queued,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Stopped<ToStore> {
        let Queued { entry, part } = queued;
        let requests = &self.parts.get(*part).requests;
        let _wake = cancel.map(|cancel| {
            let entry = Arc::clone(entry);
            cancel.on_cancel(move || entry.unpark())
        });
        loop {
            let left = until.saturating_since(self.clock.now());
            if left.is_zero() || cancel.is_some_and(CancelToken::is_cancelled) {
                return entry.stop();
            }
            let under_way = requests.waits_for();
            let limit = match entry.is_queued() {
                true => left.min(MAX_QUEUED),
                // A Condvar's time-out does not advance while the host is suspended.
                false => left.min(MAX_SLEEP),
            };
            match entry.wait(Some(limit)) {
                Ok(answer) => return Stopped::Answered(answer),
                Err(NoAnswer::TimedOut) if entry.is_queued() => {
                    self.overtake(*part, under_way);
                    // If the threads hang, this brings in more of them.
                    self.start_work(Vec::new());
                }
                Err(_) => {}
            }
        }
    }

    /// Asks the store at once if nothing is under way, together with a release that was sent. Gives the request back if
    /// it has to be queued.
    fn ask_alone(self: &Arc<Self>, part: usize, request: Request) -> Result<Answer, Request> {
        // A store that takes one operation a call is asked by any number of threads.
        if self.capabilities.batch() == 1 {
            return Ok(self.exchange(part, request));
        }
        let requests = &self.parts.get(part).requests;
        let Some((number, owed)) = requests.begin(request.name()) else {
            return Err(request);
        };
        let (answer, collected) = match owed {
            None => (self.exchange(part, request), None),
            Some((owed, mut release)) => {
                // The caller's own time bounds the call.
                release.bound(request.deadline());
                let mut answers = self.exchange_all(part, vec![release, request]);
                let answer = answers.pop().unwrap_or_else(|| Answer {
                    lease: None,
                    found: Err(unanswered()),
                });
                (answer, answers.pop().and_then(|it| owed.answer(it)))
            }
        };
        self.start_sender(part, requests.end(number));
        if let Some((answer, settlement)) = collected {
            self.settle(answer, settlement);
        }
        Ok(answer)
    }

    /// Schedules the queue of a part on the keeper's threads if `next` is the number of what they are to begin.
    pub(crate) fn start_sender(self: &Arc<Self>, part: usize, next: Option<u64>) {
        let Some(number) = next else {
            return;
        };
        let job = Job::Send {
            used: self.lasting_use(),
            part,
            number,
        };
        self.start_work(vec![(JobKind::Send(part), job)]);
    }

    /// Lets what waits in a part overtake the request with this number, or collects an owed reply.
    fn overtake(self: &Arc<Self>, part: usize, under_way: Option<u64>) {
        if let Some(under_way) = under_way {
            self.start_sender(part, self.parts.get(part).requests.overtake(under_way));
        }
    }

    /// Lets what waits overtake requests that hang, and collects owed replies: what has not changed for
    /// [`MAX_QUEUED`]. Returns when to call it again.
    pub(crate) fn send_overdue(self: &Arc<Self>, now: HostInstant) -> HostInstant {
        let mut next = HostInstant::NEVER;
        for (number, part) in self.parts.iter().enumerate() {
            let Some(under_way) = part.requests.waits_for() else {
                continue;
            };
            let mut seen = lock(&part.waits_for);
            if seen.number != under_way {
                (seen.number, seen.since) = (under_way, now);
            }
            let due = seen.since + MAX_QUEUED;
            drop(seen);
            if due > now {
                next = next.min(due);
            } else {
                self.overtake(number, Some(under_way));
                next = next.min(now + MAX_QUEUED);
            }
        }
        next
    }

    /// Collects all replies that are owed.
    pub(crate) fn collect_owed(self: &Arc<Self>) {
        for (number, part) in self.parts.iter().enumerate() {
            self.overtake(number, part.requests.waits_for());
        }
    }

    /// Sends the queue of a part, batch after batch, until it is empty.
    pub(crate) fn send_batches(self: &Arc<Self>, part: usize, mut number: u64) {
        let (limit, requests) = (self.capabilities.batch(), &self.parts.get(part).requests);
        while let Some(batch) = requests.next(&mut number, limit) {
            let (entries, batch): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let answers = self.exchange_all(part, batch);
            self.deliver(&entries, answers);
        }
    }

    /// Answers the requests that wait for a release that was sent, and is still repeated.
    pub(crate) fn fail_held(self: &Arc<Self>, part: usize, error: &Error) {
        let held = self.parts.get(part).requests.take_held();
        let fail = |(entry, request): Taken<ToStore>| {
            let error = error.clone().with_kind(ErrorKind::Unavailable);
            (entry, request.answered(Err(error)))
        };
        let (entries, answers): (Vec<_>, Vec<_>) = held.into_iter().map(fail).unzip();
        self.deliver(&entries, answers);
    }

    /// Gives the answers of a batch to their callers, and settles those that no caller waits for.
    fn deliver(self: &Arc<Self>, entries: &[Arc<Entry>], answers: Vec<Answer>) {
        let answered = entries.iter().zip(answers);
        let unattended = answered.filter_map(|(entry, answer)| entry.answer(answer));
        let unattended: Vec<_> = unattended.collect();
        wake_callers(entries);
        for (answer, settlement) in unattended {
            self.settle(answer, settlement);
        }
    }

    /// Leaves a request about a lease that is under way.
    pub(crate) fn leave(self: &Arc<Self>, entry: &Entry, settlement: Settlement) {
        if let Some((answer, settlement)) = entry.leave(settlement) {
            self.settle(answer, settlement);
        }
    }

    /// Does what is to be done with an answer that no caller waits for.
    fn settle(self: &Arc<Self>, answer: Answer, settlement: Settlement) {
        match (settlement, answer.lease) {
            (Settlement::GiveBack(ttl), None) => {
                if let Ok(Found::Grant(grant)) = answer.found {
                    self.give_back(grant.lease, ttl);
                }
            }
            (Settlement::Leave, _) => {}
            // The store has ended the lease by itself.
            (Settlement::GiveBack(_), Some(_)) if matches!(answer.found, Ok(Found::NotHeld)) => {}
            (Settlement::GiveBack(ttl), Some(lease)) => self.give_back(lease, ttl),
            (Settlement::Renewal { hold, asked }, lease) => {
                // The observer has the error.
                let _ = self.settle_renewal(&hold, Answer { lease, ..answer }, &asked);
            }
            (Settlement::Release(release), lease) => {
                self.settle_release(release, Answer { lease, ..answer });
            }
        }
    }
}

fn not_sent() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store did not answer the requests of other threads of this process in time, so this one was not sent; try again later",
    )
}

pub(crate) fn unanswered() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the store was asked and did not answer in time; what it grants is given back",
    )
}
