//! The threads of a keeper: one that watches the deadlines of all its leases and never does I/O,
//! and one that renews them and calls the user back. More renewing threads, up to a small
//! constant, join only while store calls hang, so that one dead call does not cost the other
//! guards their leases.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::{Clock, HostInstant};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::hold::{Hold, Standing};
use crate::provider::{ErasedLease, RenewRequest, Renewal};
use crate::sync::{lock, run_caught, wait};

/// The most threads that renew at the same time, and so the most dead calls that cost nobody else
/// anything.
const MOST_WORKERS: usize = 4;
/// How long work may lie there without any of it being taken, before more threads join.
const PATIENCE: Duration = Duration::from_millis(5);
/// How long the end of a keeper waits for a thread that still has something to do for it.
const FAREWELL: Duration = Duration::from_millis(100);
/// How long the watching thread sleeps at most while something has a deadline. A Condvar's time-out
/// does not advance while the host is suspended, so this is how late a deadline can be noticed.
pub(crate) const SOON: Duration = Duration::from_secs(1);
/// By how much the clock must be ahead of the time that a Condvar counts, to have jumped.
const JUMP: Duration = Duration::from_millis(100);
/// Not started yet, or asleep until told: any due time is news.
const ASLEEP: u64 = u64::MAX;

/// What the threads and the engine share.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// When the watching thread looks next, in nanoseconds. Whoever has something due before that
    /// lowers it and wakes the thread.
    next_look: AtomicU64,
    /// How many threads wait in line with a deadline.
    waiting: AtomicUsize,
    /// The clock says that it has jumped.
    jumped: AtomicBool,
    state: Mutex<State>,
    /// For the watching thread.
    alarm: Condvar,
    /// For the workers.
    work: Condvar,
    /// How many threads have the engine right now. Never taken with `state` held.
    visits: Mutex<usize>,
    /// One of them has left.
    left: Condvar,
}

#[derive(Default)]
struct State {
    watching: bool,
    stopped: bool,
    jobs: VecDeque<Job>,
    idle: usize,
    workers: usize,
    /// How many jobs were taken so far.
    taken: u64,
    /// What `taken` was when work was first seen lying there, and when that was.
    stands_still: Option<(u64, Instant)>,
}

impl State {
    /// Whether work lies there that nobody comes for: the threads that there are hang in the store.
    fn is_stuck(&mut self) -> bool {
        if self.idle > 0 {
            self.stands_still = None;
            return false;
        }
        match self.stands_still {
            Some((taken, since)) if taken == self.taken => since.elapsed() >= PATIENCE,
            _ => {
                self.stands_still = Some((self.taken, Instant::now()));
                false
            }
        }
    }
}

enum Job {
    Renew(Arc<Hold>),
    TellLost(Arc<Hold>),
}

/// A thread that waits in line with a deadline.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Upkeep {
    pub(crate) fn new() -> Self {
        Self {
            next_look: AtomicU64::new(ASLEEP),
            ..Self::default()
        }
    }

    /// Has something looked at when it is `due`. Cheap when that is later than the next look.
    pub(crate) fn note(&self, due: u64) {
        if due < self.next_look.load(Ordering::SeqCst)
            && due < self.next_look.fetch_min(due, Ordering::AcqRel)
        {
            self.wake();
        }
    }

    fn wake(&self) {
        let _state = lock(&self.state);
        self.alarm.notify_one();
    }

    /// The time jumped: look now.
    pub(crate) fn jump(&self) {
        self.jumped.store(true, Ordering::Release);
        self.note(0);
    }

    /// Counts a thread that waits in line since `now`, until the answer is dropped: meanwhile the
    /// watching thread wakes it when the clock jumps.
    pub(crate) fn waiting(&self, now: HostInstant) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.note((now + SOON).as_nanos());
        Waiting(&self.waiting)
    }

    /// Gives the engine to a thread for as long as `body` takes. `None`: nobody needs that any more.
    fn visit<R>(&self, of: &Weak<Engine>, body: impl FnOnce(&Arc<Engine>) -> R) -> Option<R> {
        let mut visits = lock(&self.visits);
        if lock(&self.state).stopped {
            return None;
        }
        let engine = of.upgrade()?;
        *visits += 1;
        drop(visits);
        let result = body(&engine);
        let mut visits = lock(&self.visits);
        // Under the lock, for whoever counts.
        drop(engine);
        *visits -= 1;
        self.left.notify_all();
        Some(result)
    }

    /// Ends the threads, and waits for those that have the engine right now, so that the store is
    /// closed when the last keeper or guard has gone: what is left to a thread does not happen when
    /// the program ends. What hangs in the store ends by its own deadline.
    pub(crate) fn close(&self) {
        lock(&self.state).stopped = true;
        self.alarm.notify_one();
        self.work.notify_all();
        let until = Instant::now() + FAREWELL;
        let mut visits = lock(&self.visits);
        while *visits > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            visits = wait(&self.left, visits, Some(left));
        }
    }

    /// Starts the watching thread, if it does not run.
    pub(crate) fn start(&self, engine: &Arc<Engine>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if state.watching {
            return Ok(());
        }
        // Waiting must not keep the engine alive.
        let of = Arc::downgrade(engine);
        let (upkeep, clock) = (Arc::clone(&engine.upkeep), Arc::clone(&engine.clock));
        // From before anybody waits: the thread may be late, and a jump early.
        let began = (clock.now(), Instant::now());
        spawn("lockkeeper-watch", move || {
            watch(&of, &upkeep, &*clock, began);
        })?;
        state.watching = true;
        Ok(())
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| {
            Error::new(
                ErrorKind::Unavailable,
                "the thread that keeps leases alive cannot be started; is the limit of threads reached?",
            )
            .with_source(error)
        })
}

/// The watching thread. It holds the engine only while it looks: the engine ends with its last
/// keeper and guard, and the thread with the engine.
fn watch(of: &Weak<Engine>, upkeep: &Upkeep, clock: &dyn Clock, began: (HostInstant, Instant)) {
    let mut last = began;
    loop {
        // Before looking: what is noted from here on lowers it again, and is not missed.
        upkeep.next_look.store(ASLEEP, Ordering::SeqCst);
        // `Instant` is the time that a Condvar counts: it stands still while the host is suspended.
        let now = (clock.now(), Instant::now());
        let by_condvar = now.1.saturating_duration_since(last.1);
        let jumped = upkeep.jumped.swap(false, Ordering::AcqRel)
            || now.0.saturating_since(last.0) > by_condvar + JUMP;
        last = now;
        let looked = upkeep.visit(of, |engine| {
            if jumped {
                engine.queue.poke_all();
            }
            look(engine)
        });
        let Some(mut next) = looked else {
            return;
        };
        if upkeep.waiting.load(Ordering::SeqCst) > 0 {
            next = next.min((now.0 + SOON).as_nanos());
        }
        upkeep.next_look.fetch_min(next, Ordering::AcqRel);
        let state = lock(&upkeep.state);
        if state.stopped {
            return;
        }
        let next = upkeep.next_look.load(Ordering::Acquire);
        let now = clock.now();
        if now.as_nanos() < next {
            let limit =
                (next != ASLEEP).then(|| HostInstant::from_nanos(next).saturating_since(now));
            let limit = limit.map(|limit| limit.min(SOON));
            drop(wait(&upkeep.alarm, state, limit));
        }
    }
}

/// Finds what is due, and hands it to the workers. Returns when to look again, in nanoseconds.
fn look(engine: &Arc<Engine>) -> u64 {
    let now = engine.clock.now();
    let mut jobs = Vec::new();
    let mut next = gather(engine, now, Duration::ZERO, &mut jobs);
    // What is due soon goes along with what is due: many leases, few round trips. On its own it would
    // not: who looks for another reason would renew the leases one by one.
    if jobs.iter().any(|job| matches!(job, Job::Renew(_))) {
        let soon = engine.settings.lease.ttl() / 12;
        next = gather(engine, now, soon, &mut jobs);
    }
    for job in &jobs {
        if let Job::TellLost(hold) = job {
            engine.queue.detach(&hold.name, hold);
        }
    }
    let waiting = enqueue(engine, jobs);
    if waiting {
        next.min((now + PATIENCE).as_nanos())
    } else {
        next
    }
}

/// Finds what is due `ahead` of its time, but for a lease with a shorter ttl, which is not renewed
/// that early. Returns when the next one is due.
fn gather(engine: &Engine, now: HostInstant, ahead: Duration, jobs: &mut Vec<Job>) -> u64 {
    engine.queue.scan((now + ahead).as_nanos(), |hold| {
        if hold.state(now) == Standing::Lost {
            if hold.must_tell() {
                jobs.push(Job::TellLost(Arc::clone(hold)));
            }
            return u64::MAX;
        }
        let at = hold.renew_at.load(Ordering::Acquire);
        let by = now + ahead.min(hold.policy.ttl() / 12);
        if at <= by.as_nanos() {
            hold.renew_at.store(u64::MAX, Ordering::Release);
            jobs.push(Job::Renew(Arc::clone(hold)));
        }
        hold.due()
    })
}

/// Gives jobs to the workers and has another one join where those that there are hang. True while
/// jobs lie there and more workers could join.
fn enqueue(engine: &Arc<Engine>, jobs: Vec<Job>) -> bool {
    let upkeep = &engine.upkeep;
    let mut state = lock(&upkeep.state);
    state.jobs.extend(jobs);
    if state.jobs.is_empty() {
        state.stands_still = None;
        return false;
    }
    // As many as the work needs, since each of them may find a call that hangs. One that is idle and
    // finds nothing left goes back to sleep.
    let batches = state
        .jobs
        .len()
        .div_ceil(engine.capabilities.renew_batch().max(1));
    for _ in 0..batches.min(state.idle) {
        upkeep.work.notify_one();
    }
    let missing = if state.workers == 0 {
        1
    } else if state.is_stuck() {
        batches.min(MOST_WORKERS - state.workers)
    } else {
        0
    };
    for _ in 0..missing {
        let of = Arc::downgrade(engine);
        let shared = Arc::clone(upkeep);
        // Where no thread can be had, the next look tries again while the lease lasts.
        if spawn("lockkeeper-renew", move || work(&of, &shared)).is_ok() {
            state.workers += 1;
            state.stands_still = None;
        }
    }
    state.workers < MOST_WORKERS
}

/// A renewing thread.
fn work(of: &Weak<Engine>, upkeep: &Arc<Upkeep>) {
    let mut state = lock(&upkeep.state);
    loop {
        if state.stopped {
            return;
        }
        let Some(job) = state.jobs.pop_front() else {
            state.idle += 1;
            state = wait(&upkeep.work, state, None);
            state.idle -= 1;
            continue;
        };
        state.taken += 1;
        drop(state);
        let done = upkeep.visit(of, |engine| match job {
            Job::TellLost(hold) => tell_lost(engine, &hold),
            Job::Renew(first) => {
                let mut batch = vec![first];
                let mut state = lock(&upkeep.state);
                while batch.len() < engine.capabilities.renew_batch()
                    && let Some(Job::Renew(_)) = state.jobs.front()
                    && let Some(Job::Renew(hold)) = state.jobs.pop_front()
                {
                    batch.push(hold);
                }
                drop(state);
                renew(engine, &batch);
            }
        });
        if done.is_none() {
            return;
        }
        state = lock(&upkeep.state);
    }
}

/// Tells the observer and calls back whoever asked for it.
pub(crate) fn tell_lost(engine: &Engine, hold: &Arc<Hold>) {
    let turn = hold.turn();
    if let Ok(token) = hold.token(turn) {
        engine.watcher.tell(|o| o.lost(&hold.name, token));
    }
    for (of, callback) in hold.take_callbacks() {
        run_caught(|| {
            if of == turn {
                callback();
            }
        });
    }
}

/// Renews the leases of a batch; each gets its answer.
pub(crate) fn renew(engine: &Engine, holds: &[Arc<Hold>]) {
    let clock = &*engine.clock;
    let mut taken: Vec<(&Arc<Hold>, ErasedLease, HostInstant)> = holds
        .iter()
        .filter_map(|hold| {
            let (lease, deadline) = hold.take_to_renew(clock)?;
            Some((hold, lease, deadline))
        })
        .collect();
    let asked_at = clock.now();
    let mut batch: Vec<RenewRequest<'_, ErasedLease>> = taken
        .iter_mut()
        .map(|(hold, lease, deadline)| RenewRequest {
            lease,
            ttl: hold.policy.ttl(),
            deadline: *deadline,
            answer: None,
        })
        .collect();
    // A backend's panic must not end the renewal of everybody's leases.
    let whole = catch_unwind(AssertUnwindSafe(|| engine.provider.renew_batch(&mut batch)));
    let answers: Vec<_> = batch
        .into_iter()
        .map(|renew| {
            renew
                .answer
                .unwrap_or_else(|| Err(no_answer(whole.is_err())))
        })
        .collect();
    for ((hold, lease, _), answer) in taken.into_iter().zip(answers) {
        settle(engine, hold, lease, &answer, asked_at);
    }
}

fn no_answer(panicked: bool) -> Error {
    let what = if panicked {
        "the backend panicked while it renewed"
    } else {
        "the backend gave no answer to a renewal"
    };
    Error::new(ErrorKind::Unknown, what)
}

/// Brings a lease back from its renewal and tells whom it concerns.
pub(crate) fn settle(
    engine: &Engine,
    hold: &Arc<Hold>,
    lease: ErasedLease,
    answer: &Result<Renewal, Error>,
    asked_at: HostInstant,
) {
    if let Some(mut lease) = hold.bring_back(lease, answer, asked_at, &*engine.clock) {
        // Its guard went while it was away, or calls itself lost already: nobody needs it.
        let deadline = engine.clock.now() + hold.policy.ttl();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            engine.provider.release(&mut lease, deadline)
        }));
    }
    if engine.watcher.is_some()
        && let Ok(token) = hold.token(hold.turn())
    {
        match answer {
            Ok(Renewal::Renewed) => engine.watcher.tell(|o| o.renewed(&hold.name, token)),
            Ok(Renewal::Lost) => {}
            Err(error) => engine
                .watcher
                .tell(|o| o.renewal_unknown(&hold.name, token, error)),
        }
    }
    let due = match hold.state(engine.clock.now()) {
        Standing::Held => hold.due(),
        Standing::Lost => 0,
        Standing::Over => return,
    };
    engine.queue.touch(&hold.name, due);
    engine.upkeep.note(due);
}
