//! Group commit inside the process: which request goes to the store at once, and which go together in
//! the next batch.
//!
//! A request that finds no other under way is made by its own thread, alone. Those that come meanwhile are queued. A
//! thread of the keeper sends them together when the one before them is done, batch after batch until none is left. A
//! caller that stops waiting leaves its entry; what comes back for it is given to the batch's thread with what the
//! caller left.
//!
//! Every change of an entry happens under its mutex, and that alone decides races such as "the caller
//! leaves while the answer comes". This knows neither time nor store, so a model checker can run all of it:
//! `tests/model/` compiles this file.
//!
//! Lock order: no two of these are locked together.
//!
//! All callers of a batch are woken after all answers are sorted in. Woken one by one, the kernel ran them in
//! between, which cost SQLite and Redis a sixth of the rate.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, lock, wait};

/// A kind of request.
pub(crate) trait Kind {
    type Ask;
    type Reply;
    /// What a caller leaves behind that does not wait for the reply.
    type Left;
}

/// The requests of one keeper, of two kinds that travel together.
pub(crate) struct Batches<A: Kind, B: Kind> {
    state: Mutex<State<A, B>>,
    /// The callers that come now.
    callers: Mutex<Arc<Callers>>,
}

struct State<A: Kind, B: Kind> {
    queues: (Queue<A>, Queue<B>),
    /// The number of the request that is under way, or of the last one: a batch, or a caller alone.
    number: u64,
    stage: Stage,
}

type Queue<K> = VecDeque<Arc<Entry<K>>>;

/// What a batch takes of a kind.
pub(crate) type Taken<K> = Vec<(Arc<Entry<K>>, <K as Kind>::Ask)>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way.
    Idle,
    /// A caller's request is under way, or a batch.
    UnderWay,
    /// A thread is to send the queue, and has not begun.
    Starting,
}

/// One request that goes with a batch, and its caller.
pub(crate) struct Entry<K: Kind> {
    slot: Mutex<Slot<K>>,
    callers: Arc<Callers>,
}

/// The callers that come between two batches. They are woken together, by one system call: one for each took
/// longer than the store takes for a request. A caller may be woken without a reply.
#[derive(Default)]
pub(crate) struct Callers {
    /// How often they were woken.
    wakes: Mutex<u64>,
    woken: Condvar,
}

struct Slot<K: Kind> {
    progress: Progress<K>,
    unparked: bool,
}

enum Progress<K: Kind> {
    Queued(K::Ask),
    /// A batch is under way with it.
    Sent,
    Answered(K::Reply),
    /// The caller has gone.
    Left(K::Left),
    /// The caller has its reply, or has taken its request back.
    Done,
}

/// What a caller that stops waiting finds.
pub(crate) enum Stopped<K: Kind> {
    /// The request was not sent, and never will be.
    NotSent(K::Ask),
    /// The request is under way: call [`Entry::leave`].
    Sent,
    Answered(K::Reply),
}

/// Why a wait ended without a reply.
pub(crate) enum NoReply {
    /// Other callers have their replies, or the caller is to check its cancel token.
    Woken,
    TimedOut,
}

/// What is under way after a request was queued, or has waited for long.
#[derive(Clone, Copy)]
pub(crate) enum UnderWay {
    /// Another request. It may be [overtaken](Batches::overtake) if it hangs.
    Other(u64),
    /// The queue is to be sent: have a thread call [`Batches::next`] with it.
    Start(u64),
}

impl<A: Kind, B: Kind> Batches<A, B> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                queues: (Queue::new(), Queue::new()),
                number: 0,
                stage: Stage::Idle,
            }),
            callers: Mutex::default(),
        }
    }

    /// Returns the callers with which the caller of a request that comes now is woken.
    pub(crate) fn callers(&self) -> Arc<Callers> {
        Arc::clone(&lock(&self.callers))
    }

    /// Begins a request that the calling thread makes alone. Returns its number for
    /// [`end_alone`](Self::end_alone); `None` if another request is under way: queue it then.
    pub(crate) fn begin_alone(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.stage != Stage::Idle {
            return None;
        }
        state.stage = Stage::UnderWay;
        state.number += 1;
        Some(state.number)
    }

    /// Ends a request that was made alone. Returns the number with which a thread is to call
    /// [`next`](Self::next), if any request was queued meanwhile.
    pub(crate) fn end_alone(&self, number: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.number != number {
            // It was overtaken.
            return None;
        }
        state.stage = Stage::Idle;
        state.start()
    }

    /// Queues requests of the first kind, for the same batch.
    pub(crate) fn push_first(&self, entries: &[Arc<Entry<A>>]) -> UnderWay {
        lock(&self.state).push(|queues| queues.0.extend(entries.iter().cloned()))
    }

    /// Queues requests of the second kind, for the same batch.
    pub(crate) fn push_second(&self, entries: &[Arc<Entry<B>>]) -> UnderWay {
        lock(&self.state).push(|queues| queues.1.extend(entries.iter().cloned()))
    }

    /// Lets the queue overtake the request with this number, which takes too long.
    pub(crate) fn overtake(&self, number: u64) -> UnderWay {
        let mut state = lock(&self.state);
        if state.number == number && state.stage == Stage::UnderWay {
            state.stage = Stage::Idle;
            if let Some(number) = state.start() {
                return UnderWay::Start(number);
            }
            state.stage = Stage::UnderWay;
        }
        UnderWay::Other(state.number)
    }

    /// Takes the next batch, of `limit` requests at most, and has `number` be its number. `None` ends the
    /// calling thread's work: the queue is empty, or another thread has overtaken it.
    pub(crate) fn next(&self, number: &mut u64, limit: usize) -> Option<(Taken<A>, Taken<B>)> {
        loop {
            let mut state = lock(&self.state);
            if state.number != *number {
                return None;
            }
            if state.is_empty() {
                state.stage = Stage::Idle;
                return None;
            }
            state.stage = Stage::UnderWay;
            state.number += 1;
            *number = state.number;
            let (first, second) = &mut state.queues;
            // Leases first: their release lets others have the names.
            let seconds = second.len().min(limit);
            let seconds: Vec<_> = second.drain(..seconds).collect();
            let firsts = first.len().min(limit - seconds.len());
            let firsts: Vec<_> = first.drain(..firsts).collect();
            drop(state);
            *lock(&self.callers) = Arc::default();
            let (firsts, seconds) = (taken(firsts), taken(seconds));
            // All of them may have left.
            if !firsts.is_empty() || !seconds.is_empty() {
                return Some((firsts, seconds));
            }
        }
    }
}

/// Wakes the callers of a batch, after all of it is answered.
pub(crate) fn wake_callers<A: Kind, B: Kind>(first: &[Arc<Entry<A>>], second: &[Arc<Entry<B>>]) {
    let all = first.iter().map(|it| &it.callers);
    let all = all.chain(second.iter().map(|it| &it.callers));
    let mut woken: Vec<&Arc<Callers>> = Vec::new();
    for callers in all {
        if !woken.iter().any(|other| Arc::ptr_eq(other, callers)) {
            woken.push(callers);
            callers.wake();
        }
    }
}

/// Takes the requests that have a caller.
fn taken<K: Kind>(entries: Vec<Arc<Entry<K>>>) -> Taken<K> {
    let with_ask = |entry: Arc<Entry<K>>| {
        let ask = entry.send()?;
        Some((entry, ask))
    };
    entries.into_iter().filter_map(with_ask).collect()
}

impl<A: Kind, B: Kind> State<A, B> {
    fn is_empty(&self) -> bool {
        self.queues.0.is_empty() && self.queues.1.is_empty()
    }

    fn push(&mut self, push: impl FnOnce(&mut (Queue<A>, Queue<B>))) -> UnderWay {
        push(&mut self.queues);
        match self.start() {
            Some(number) => UnderWay::Start(number),
            None => UnderWay::Other(self.number),
        }
    }

    /// Returns the number of the next batch if requests are queued and no batch is under way.
    fn start(&mut self) -> Option<u64> {
        if self.stage != Stage::Idle || self.is_empty() {
            return None;
        }
        self.stage = Stage::Starting;
        self.number += 1;
        Some(self.number)
    }
}

impl<K: Kind> Entry<K> {
    /// Makes an entry for a request. [`Batches::callers`] returns the callers.
    pub(crate) fn new(ask: K::Ask, callers: Arc<Callers>) -> Arc<Self> {
        Arc::new(Self {
            slot: Mutex::new(Slot {
                progress: Progress::Queued(ask),
                unparked: false,
            }),
            callers,
        })
    }

    /// Takes the request to send it. `None` if its caller has taken it back.
    fn send(&self) -> Option<K::Ask> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut slot.progress, Progress::Sent) {
            Progress::Queued(ask) => Some(ask),
            other => {
                slot.progress = other;
                None
            }
        }
    }

    /// Blocks until there is a reply, `limit` is over, or the callers are woken, as by
    /// [`unpark`](Self::unpark). Without a reply, check clock and cancel token, then wait on or
    /// [`stop`](Self::stop).
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<K::Reply, NoReply> {
        let seen = *lock(&self.callers.wakes);
        let is_due = lock(&self.slot).ends_wait();
        let is_woken = is_due || self.callers.wait(seen, limit);
        let mut slot = lock(&self.slot);
        slot.unparked = false;
        slot.take_reply().ok_or(match is_woken {
            true => NoReply::Woken,
            false => NoReply::TimedOut,
        })
    }

    /// Makes a waiting caller check the clock and its cancel token.
    pub(crate) fn unpark(&self) {
        lock(&self.slot).unparked = true;
        self.callers.wake();
    }

    /// Returns whether no batch has taken it.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(lock(&self.slot).progress, Progress::Queued(_))
    }

    /// Stops waiting.
    pub(crate) fn stop(&self) -> Stopped<K> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut slot.progress, Progress::Done) {
            Progress::Queued(ask) => Stopped::NotSent(ask),
            Progress::Answered(reply) => Stopped::Answered(reply),
            other => {
                slot.progress = other;
                Stopped::Sent
            }
        }
    }

    /// Leaves a request that is under way: the batch's thread gets `left` with the reply. Gives both back
    /// if the reply came first.
    pub(crate) fn leave(&self, left: K::Left) -> Option<(K::Reply, K::Left)> {
        let mut slot = lock(&self.slot);
        if let Some(reply) = slot.take_reply() {
            return Some((reply, left));
        }
        slot.progress = Progress::Left(left);
        None
    }

    /// Answers the caller without a wake-up; see [`wake_callers`]. Gives the reply back with what the caller
    /// left, if it has gone.
    pub(crate) fn answer(&self, reply: K::Reply) -> Option<(K::Reply, K::Left)> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut slot.progress, Progress::Done) {
            Progress::Left(left) => Some((reply, left)),
            _ => {
                slot.progress = Progress::Answered(reply);
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

impl<K: Kind> Slot<K> {
    fn ends_wait(&self) -> bool {
        matches!(self.progress, Progress::Answered(_)) || self.unparked
    }

    fn take_reply(&mut self) -> Option<K::Reply> {
        match std::mem::replace(&mut self.progress, Progress::Done) {
            Progress::Answered(reply) => Some(reply),
            other => {
                self.progress = other;
                None
            }
        }
    }
}
