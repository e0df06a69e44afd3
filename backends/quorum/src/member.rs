//! A member: its store, which is opened when it can be reached, and the queue of its worker.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::{
    Capability, Clock, ErasedLease, Error, ErrorKind, HostInstant, LeaseVerifier, LockProvider,
};

use crate::hold::{Hold, Job, PATIENCE};
use crate::lock;
use crate::open::QuorumMember;

/// The pause after a failed attempt to open a member.
const OPEN_EVERY: Duration = Duration::from_millis(500);
/// The mean pause before a release that failed is repeated.
const RELEASE_EVERY: Duration = Duration::from_millis(200);

/// A question of an operator. Its argument is the store, or the error why it cannot be asked.
pub(crate) type Question = Box<dyn FnOnce(Result<&dyn LockProvider, Error>) + Send>;

pub(crate) struct Member {
    pub(crate) index: usize,
    pub(crate) source: QuorumMember,
    pub(crate) clock: Arc<dyn Clock>,
    /// The servers of all members, as far as they are open and known.
    servers: Arc<Mutex<Vec<Option<String>>>>,
    store: Mutex<Store>,
    queue: Mutex<Queue>,
    posted: Condvar,
    /// The start of the worker's current call of the store, in nanoseconds; 0 without a call.
    in_call_since: AtomicU64,
    /// Whether the last call failed or took long.
    was_slow: AtomicBool,
}

#[derive(Default)]
struct Store {
    opened: Option<Arc<dyn LockProvider>>,
    /// The error of the last attempt to open it, and the time of the next one.
    failed: Option<(Error, HostInstant)>,
    /// The capabilities that a store must have if it is opened late.
    needs: Vec<Capability>,
    verifiers: Vec<LeaseVerifier>,
}

/// What the worker of a member is to do.
pub(crate) enum Task {
    Job(Job),
    Ask(Question),
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Jobs to repeat, with their times.
    repeated: Vec<(HostInstant, Job)>,
    is_closed: bool,
}

impl Queue {
    /// Takes up to `most` tasks of different names from the front, since a batch has no order.
    fn batch(&mut self, most: usize) -> Vec<Task> {
        let mut names = HashSet::new();
        let mut is_next = |task: &Task| match task {
            Task::Job(job) => names.insert(job.hold.name.hash64()),
            Task::Ask(_) => true,
        };
        let fitting = self.tasks.iter().take(most);
        let fitting = fitting.take_while(|task| is_next(task)).count();
        self.tasks.drain(..fitting).collect()
    }
}

impl Member {
    pub(crate) fn new(
        index: usize,
        source: QuorumMember,
        clock: Arc<dyn Clock>,
        servers: Arc<Mutex<Vec<Option<String>>>>,
    ) -> Self {
        Self {
            index,
            source,
            clock,
            servers,
            store: Mutex::default(),
            queue: Mutex::default(),
            posted: Condvar::new(),
            in_call_since: AtomicU64::new(0),
            was_slow: AtomicBool::new(false),
        }
    }

    /// Returns the store if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<dyn LockProvider>> {
        lock(&self.store).opened.clone()
    }

    /// Returns the store, and opens it if that is due.
    pub(crate) fn open(&self) -> Result<Arc<dyn LockProvider>, Error> {
        {
            let store = lock(&self.store);
            if let Some(opened) = &store.opened {
                return Ok(Arc::clone(opened));
            }
            if let Some((error, next)) = &store.failed
                && self.clock.now() < *next
            {
                return Err(error.clone());
            }
        }
        // Without the mutex: other threads ask whether the store is open.
        let opened = self.source.open();
        let mut store = lock(&self.store);
        let checked = opened.and_then(|opened| {
            let needs = [&[Capability::ProposedEpoch], store.needs.as_slice()].concat();
            let lacks = needs.into_iter().find(|it| !opened.capabilities().has(*it));
            match lacks {
                None => self.check_server(&*opened).map(|()| opened),
                Some(lacks) => Err(self.lacks(lacks)),
            }
        });
        match &checked {
            Ok(opened) => {
                store.verifiers.retain(|verifier| !verifier.is_ended());
                for verifier in &store.verifiers {
                    opened.watch_leases(verifier.clone());
                }
                store.opened = Some(Arc::clone(opened));
            }
            Err(error) => {
                let pause = OPEN_EVERY.mul_f64(0.5 + fastrand::f64());
                store.failed = Some((error.clone(), self.clock.now() + pause));
            }
        }
        checked
    }

    /// Refuses a store on the server of another member: it would have two votes.
    fn check_server(&self, store: &dyn LockProvider) -> Result<(), Error> {
        let Some(server) = store.server() else {
            return Ok(());
        };
        let mut servers = lock(&self.servers);
        let is_other =
            |(at, it): (usize, &Option<String>)| at != self.index && it.as_ref() == Some(&server);
        if servers.iter().enumerate().any(is_other) {
            let location = self.source.location();
            let text = format!(
                "the member {location} is on the server of another member, under another address or database; a server has one vote"
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        if let Some(own) = servers.get_mut(self.index) {
            *own = Some(server);
        }
        Ok(())
    }

    fn lacks(&self, capability: Capability) -> Error {
        let location = self.source.location();
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "the member {location} lacks `{capability}`, which the other members have or a quorum needs; \
                 use another kind of store"
            ),
        )
    }

    /// Sets what a store that is opened late must promise: what the quorum has declared.
    pub(crate) fn require(&self, needs: Vec<Capability>) {
        lock(&self.store).needs = needs;
    }

    pub(crate) fn watch_leases(&self, verifier: LeaseVerifier) {
        let mut store = lock(&self.store);
        if let Some(opened) = &store.opened {
            opened.watch_leases(verifier.clone());
        }
        store.verifiers.retain(|verifier| !verifier.is_ended());
        store.verifiers.push(verifier);
    }

    /// Posts a job to the worker.
    pub(crate) fn post(&self, job: Job) {
        self.post_task(Task::Job(job));
    }

    pub(crate) fn post_task(&self, task: Task) {
        lock(&self.queue).tasks.push_back(task);
        self.posted.notify_one();
    }

    /// Posts the release of a lease to the worker.
    pub(crate) fn release(&self, hold: &Arc<Hold>, lease: ErasedLease, deadline: HostInstant) {
        self.post(Job::release(hold, lease, self.clock.now(), deadline));
    }

    /// Posts a job to the worker once more, after a pause. A worker that is to end repeats nothing.
    pub(crate) fn post_again(&self, job: Job) {
        let pause = RELEASE_EVERY.mul_f64(0.5 + fastrand::f64());
        let at = self.clock.now() + pause;
        lock(&self.queue).repeated.push((at, job));
    }

    /// Returns whether the last call of the worker failed or took long, or the current one takes long.
    pub(crate) fn is_slow(&self) -> bool {
        let since = self.in_call_since.load(Ordering::Relaxed);
        let lasts = self.clock.now().as_nanos().saturating_sub(since);
        let is_in_call = since != 0 && Duration::from_nanos(lasts) > PATIENCE;
        is_in_call || self.was_slow.load(Ordering::Relaxed)
    }

    /// Calls the store, and notes how long that takes.
    pub(crate) fn in_call<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = self.clock.now();
        self.in_call_since
            .store(began.as_nanos().max(1), Ordering::Relaxed);
        let result = call();
        let took = self.clock.now().saturating_since(began);
        self.was_slow.store(took > PATIENCE, Ordering::Relaxed);
        self.in_call_since.store(0, Ordering::Relaxed);
        result
    }

    /// Notes that the last call failed.
    pub(crate) fn failed(&self) {
        self.was_slow.store(true, Ordering::Relaxed);
    }

    /// Ends the worker when it has carried out what is posted.
    pub(crate) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.posted.notify_one();
    }

    /// Takes up to `most` tasks, and waits for the first one. Returns none at the end.
    pub(crate) fn take(&self, most: usize) -> Vec<Task> {
        let mut queue = lock(&self.queue);
        loop {
            let now = self.clock.now();
            let Queue {
                tasks, repeated, ..
            } = &mut *queue;
            let due = repeated.extract_if(.., |(at, _)| *at <= now);
            tasks.extend(due.map(|(_, job)| Task::Job(job)));
            if !tasks.is_empty() || queue.is_closed {
                return queue.batch(most);
            }
            let posted = match queue.repeated.iter().map(|(at, _)| *at).min() {
                None => self.posted.wait(queue).map_err(PoisonError::into_inner),
                Some(next) => {
                    let limit = next.saturating_since(now);
                    let waited = self.posted.wait_timeout(queue, limit);
                    waited.map(|it| it.0).map_err(|it| it.into_inner().0)
                }
            };
            queue = posted.unwrap_or_else(|queue| queue);
        }
    }
}
