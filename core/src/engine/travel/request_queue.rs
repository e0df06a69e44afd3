//! The requests of one part of the store: which one goes at once, and which go together in the next batch.
//!
//! A request that finds no other under way is made by its own thread, alone. Those that come meanwhile wait here. A
//! thread of the keeper sends them together when the one before them is done, batch after batch until none is left. A
//! caller that stops waiting leaves its request with a settlement: what is to be done with the answer. A request that
//! no caller waits for has its settlement from the beginning.
//!
//! At most one release is sent without anyone reading its reply. It is *owed*: whatever begins next takes it along, as
//! its first request, on the same connection. Until the release is settled, requests for its name go with it or behind
//! it, and overtake neither.
//!
//! Every change of a request happens under its mutex, and that alone decides races such as "the caller leaves while the
//! answer comes". This knows neither time nor store, so a model checker can run all of it: `tests/model/` compiles this
//! file.
//!
//! Lock order: no two of these are locked together.
//!
//! All callers of a batch are woken after all answers are sorted in. Woken one by one, the kernel ran them in between,
//! which cost SQLite and Redis a sixth of the rate.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, lock, wait};

/// What travels through a queue.
pub(crate) trait Travel {
    type Request;
    type Answer;
    /// What is to be done with an answer that no caller waits for.
    type Settlement;
}

/// The requests of one part of the store.
pub(crate) struct RequestQueue<T: Travel> {
    state: Mutex<QueueState<T>>,
    /// The callers that come now.
    callers: Mutex<Arc<Callers>>,
}

struct QueueState<T: Travel> {
    waiting: VecDeque<Arc<QueuedRequest<T>>>,
    /// The number of what is under way, or was last: a batch, or a lone request.
    number: u64,
    stage: Stage,
    sent: Option<SentRelease<T>>,
}

/// A release that was sent, and whose answer is not known.
struct SentRelease<T: Travel> {
    /// The hash of its name.
    name: u64,
    /// The release, until something takes it along to read its reply.
    owed: Option<Arc<QueuedRequest<T>>>,
}

/// A request that was taken to be sent.
pub(crate) type Taken<T> = (Arc<QueuedRequest<T>>, <T as Travel>::Request);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way. A release may be owed.
    Idle,
    /// A lone request is under way, or a batch.
    UnderWay,
    /// A thread is to send what waits, and has not begun.
    Starting,
}

/// One request that goes with a batch, or an owed release.
pub(crate) struct QueuedRequest<T: Travel> {
    /// The hash of the name that an attempt asks for.
    name: Option<u64>,
    slot: Mutex<Slot<T>>,
    /// Those with which its caller is woken. `None` if it never had one.
    callers: Option<Arc<Callers>>,
}

/// The callers that come between two batches. They are woken together, by one system call: one for each took
/// longer than the store takes for a request. A caller may be woken without an answer.
#[derive(Default)]
pub(crate) struct Callers {
    /// How often they were woken.
    wakes: Mutex<u64>,
    woken: Condvar,
}

struct Slot<T: Travel> {
    progress: Progress<T>,
    unparked: bool,
}

enum Progress<T: Travel> {
    Queued(T::Request),
    /// It is queued or owed, and no caller waits for it.
    Unattended(T::Request, T::Settlement),
    /// It is under way, and its caller waits.
    Sent,
    Answered(T::Answer),
    /// It is under way, and its caller has left.
    Left(T::Settlement),
    /// Its caller has the answer, or has taken the request back.
    Done,
}

/// What a caller that stops waiting finds.
pub(crate) enum Stopped<T: Travel> {
    /// The request was not sent, and never will be.
    NotSent(T::Request),
    /// The request is under way: call [`QueuedRequest::leave`].
    Sent,
    Answered(T::Answer),
}

/// Why a wait ended without an answer.
pub(crate) enum NoAnswer {
    /// Other callers have their answers, or the caller is to check its cancel token.
    Woken,
    TimedOut,
}

impl<T: Travel> RequestQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                number: 0,
                stage: Stage::Idle,
                sent: None,
            }),
            callers: Mutex::default(),
        }
    }

    /// Begins a request that the calling thread makes alone; `name` is the hash of the name that it asks for. Returns
    /// its number for [`end`](Self::end), and an owed release that it takes along. `None` if it has to wait: queue it
    /// then.
    pub(crate) fn begin(&self, name: Option<u64>) -> Option<(u64, Option<Taken<T>>)> {
        let mut state = lock(&self.state);
        if state.stage != Stage::Idle || state.is_held(name) {
            return None;
        }
        let number = state.start_now();
        let owed = state.take_owed();
        drop(state);
        Some((number, owed.and_then(taken)))
    }

    /// Begins to send a release that is not waited for, of the name with this hash. Returns its number for
    /// [`end_send`](Self::end_send). `None` if anything is under way, or another release is not settled.
    pub(crate) fn begin_send(&self, name: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.stage != Stage::Idle || state.sent.is_some() {
            return None;
        }
        state.sent = Some(SentRelease { name, owed: None });
        Some(state.start_now())
    }

    /// Ends the sending of a release. `owed` is the release if it was sent. Returns as [`end`](Self::end).
    pub(crate) fn end_send(&self, number: u64, owed: Option<Arc<QueuedRequest<T>>>) -> Option<u64> {
        let mut state = lock(&self.state);
        match (owed, &mut state.sent) {
            (Some(owed), Some(sent)) => sent.owed = Some(owed),
            _ => state.sent = None,
        }
        if state.number == number {
            state.stage = Stage::Idle;
        }
        state.start()
    }

    /// Ends a lone request. Returns the number with which a thread is to call [`next`](Self::next), if a request that
    /// may go waits.
    pub(crate) fn end(&self, number: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.number != number {
            // It was overtaken.
            return None;
        }
        state.stage = Stage::Idle;
        state.start()
    }

    /// Records that the release that was sent has its answer, or is given up. Returns as [`end`](Self::end).
    pub(crate) fn settle(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        state.sent = None;
        state.start()
    }

    /// Returns whether no release is owed or repeated.
    pub(crate) fn is_settled(&self) -> bool {
        lock(&self.state).sent.is_none()
    }

    /// Returns the callers with which the caller of a request that comes now is woken.
    pub(crate) fn callers(&self) -> Arc<Callers> {
        Arc::clone(&lock(&self.callers))
    }

    /// Queues requests, for the same batch. Returns as [`end`](Self::end).
    pub(crate) fn push(&self, requests: &[Arc<QueuedRequest<T>>]) -> Option<u64> {
        let mut state = lock(&self.state);
        state.waiting.extend(requests.iter().cloned());
        state.start()
    }

    /// Returns the number of what is under way or was last, if a request that may go waits for it, or a release is owed.
    pub(crate) fn waits_for(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.has_next() || state.is_owed()).then_some(state.number)
    }

    /// Lets what waits overtake the request with this number, which takes too long. Collects an owed release if nothing
    /// has begun since. Returns as [`end`](Self::end).
    pub(crate) fn overtake(&self, number: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        let is_due = match state.stage {
            Stage::Idle => state.is_owed(),
            Stage::UnderWay => state.has_next(),
            Stage::Starting => false,
        };
        (state.number == number && is_due).then(|| state.start_later())
    }

    /// Takes the next batch, of `limit` requests at most, and has `number` be its number. `None` ends the calling
    /// thread's work: nothing is to be sent, or another thread has overtaken it.
    pub(crate) fn next(&self, number: &mut u64, limit: usize) -> Option<Vec<Taken<T>>> {
        loop {
            let mut state = lock(&self.state);
            if state.number != *number {
                return None;
            }
            if !state.has_next() && !state.is_owed() {
                state.stage = Stage::Idle;
                return None;
            }
            *number = state.start_now();
            let batch = state.take_batch(limit);
            drop(state);
            *lock(&self.callers) = Arc::default();
            let batch: Vec<_> = batch.into_iter().filter_map(taken).collect();
            // All callers may have left.
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// Takes the requests that wait for the release that was sent, to answer them otherwise.
    pub(crate) fn take_held(&self) -> Vec<Taken<T>> {
        let mut state = lock(&self.state);
        let (held, others) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|request| state.is_held(request.name));
        state.waiting = others;
        drop(state);
        held.into_iter().filter_map(taken).collect()
    }
}

/// Wakes the callers of a batch, after all of it is answered.
pub(crate) fn wake_callers<T: Travel>(batch: &[Arc<QueuedRequest<T>>]) {
    let mut woken: Vec<&Arc<Callers>> = Vec::new();
    for callers in batch.iter().filter_map(|it| it.callers.as_ref()) {
        if !woken.iter().any(|other| Arc::ptr_eq(other, callers)) {
            woken.push(callers);
            callers.wake();
        }
    }
}

/// Takes a request if its caller has not taken it back.
fn taken<T: Travel>(request: Arc<QueuedRequest<T>>) -> Option<Taken<T>> {
    let content = request.send()?;
    Some((request, content))
}

impl<T: Travel> QueueState<T> {
    /// Returns whether an attempt for this name has to wait for a release that was sent.
    fn is_held(&self, name: Option<u64>) -> bool {
        let sent = self.sent.as_ref();
        sent.is_some_and(|it| it.owed.is_none() && name == Some(it.name))
    }

    fn is_owed(&self) -> bool {
        self.sent.as_ref().is_some_and(|it| it.owed.is_some())
    }

    fn take_owed(&mut self) -> Option<Arc<QueuedRequest<T>>> {
        self.sent.as_mut()?.owed.take()
    }

    /// Returns whether a request waits that may go.
    fn has_next(&self) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|request| !self.is_held(request.name))
    }

    fn take_batch(&mut self, limit: usize) -> Vec<Arc<QueuedRequest<T>>> {
        let is_owed = self.is_owed();
        // With the owed release goes who asks for its name.
        let (mut batch, held) = match self.sent.is_some() && !is_owed {
            true => std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|request| !self.is_held(request.name)),
            false => (std::mem::take(&mut self.waiting), VecDeque::new()),
        };
        if let Some(owed) = self.take_owed() {
            batch.push_front(owed);
        }
        let rest = batch.split_off(batch.len().min(limit));
        self.waiting = rest;
        self.waiting.extend(held);
        batch.into()
    }

    /// Returns the number of the next batch if a request waits and nothing is under way.
    fn start(&mut self) -> Option<u64> {
        (self.stage == Stage::Idle && self.has_next()).then(|| self.start_later())
    }

    fn start_later(&mut self) -> u64 {
        self.stage = Stage::Starting;
        self.number += 1;
        self.number
    }

    fn start_now(&mut self) -> u64 {
        self.stage = Stage::UnderWay;
        self.number += 1;
        self.number
    }
}

impl<T: Travel> QueuedRequest<T> {
    /// Makes a request that a caller waits for; `name` is the hash of the name that it asks for.
    /// [`RequestQueue::callers`] returns the callers.
    pub(crate) fn new(request: T::Request, name: Option<u64>, callers: Arc<Callers>) -> Arc<Self> {
        Self::with(Progress::Queued(request), name, Some(callers))
    }

    /// Makes a request that no caller waits for.
    pub(crate) fn unattended(request: T::Request, settlement: T::Settlement) -> Arc<Self> {
        Self::with(Progress::Unattended(request, settlement), None, None)
    }

    fn with(progress: Progress<T>, name: Option<u64>, callers: Option<Arc<Callers>>) -> Arc<Self> {
        let slot = Slot {
            progress,
            unparked: false,
        };
        Arc::new(Self {
            name,
            slot: Mutex::new(slot),
            callers,
        })
    }

    /// Takes the request to send it. `None` if its caller has taken it back.
    fn send(&self) -> Option<T::Request> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut slot.progress, Progress::Sent) {
            Progress::Queued(request) => Some(request),
            Progress::Unattended(request, settlement) => {
                slot.progress = Progress::Left(settlement);
                Some(request)
            }
            other => {
                slot.progress = other;
                None
            }
        }
    }

    /// Blocks until there is an answer, `limit` is over, or the callers are woken, as by
    /// [`unpark`](Self::unpark). Without an answer, check clock and cancel token, then wait on or
    /// [`stop`](Self::stop).
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<T::Answer, NoAnswer> {
        let callers = self.callers.as_ref().ok_or(NoAnswer::Woken)?;
        let seen = *lock(&callers.wakes);
        let is_due = lock(&self.slot).ends_wait();
        let is_woken = is_due || callers.wait(seen, limit);
        let mut slot = lock(&self.slot);
        slot.unparked = false;
        slot.take_answer().ok_or(match is_woken {
            true => NoAnswer::Woken,
            false => NoAnswer::TimedOut,
        })
    }

    /// Makes a waiting caller check the clock and its cancel token.
    pub(crate) fn unpark(&self) {
        lock(&self.slot).unparked = true;
        if let Some(callers) = &self.callers {
            callers.wake();
        }
    }

    /// Returns whether nothing has taken it.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(lock(&self.slot).progress, Progress::Queued(_))
    }

    /// Stops waiting.
    pub(crate) fn stop(&self) -> Stopped<T> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut slot.progress, Progress::Done) {
            Progress::Queued(request) => Stopped::NotSent(request),
            Progress::Answered(answer) => Stopped::Answered(answer),
            other => {
                slot.progress = other;
                Stopped::Sent
            }
        }
    }

    /// Leaves a request that is under way: whoever gets the answer gets `settlement` with it. Gives both back if the
    /// answer came first.
    pub(crate) fn leave(&self, settlement: T::Settlement) -> Option<(T::Answer, T::Settlement)> {
        let mut slot = lock(&self.slot);
        if let Some(answer) = slot.take_answer() {
            return Some((answer, settlement));
        }
        slot.progress = Progress::Left(settlement);
        None
    }

    /// Answers the caller without a wake-up; see [`wake_callers`]. Gives the answer back with its settlement if no
    /// caller waits.
    pub(crate) fn answer(&self, answer: T::Answer) -> Option<(T::Answer, T::Settlement)> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut slot.progress, Progress::Done) {
            Progress::Left(settlement) => Some((answer, settlement)),
            _ => {
                slot.progress = Progress::Answered(answer);
                None
            }
        }
    }
}

impl Callers {
    /// Waits for a wake-up after those that were `seen`, at most for `limit`. Returns whether there was one.
    fn wait(&self, seen: u64, limit: Option<Duration>) -> bool {
        let mut wakes = lock(&self.wakes);
        if *wakes == seen {
            wakes = wait(&self.woken, wakes, limit);
        }
        *wakes != seen
    }

    fn wake(&self) {
        *lock(&self.wakes) += 1;
        self.woken.notify_all();
    }
}

impl<T: Travel> Slot<T> {
    fn ends_wait(&self) -> bool {
        matches!(self.progress, Progress::Answered(_)) || self.unparked
    }

    fn take_answer(&mut self) -> Option<T::Answer> {
        match std::mem::replace(&mut self.progress, Progress::Done) {
            Progress::Answered(answer) => Some(answer),
            other => {
                self.progress = other;
                None
            }
        }
    }
}
