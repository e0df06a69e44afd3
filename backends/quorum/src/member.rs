//! A member: its store, which is opened when it can be reached, and the queue of its worker.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    Capability, Clock, ErasedLease, Error, ErrorKind, HostInstant, LeaseVerifier, LockProvider,
};

use crate::hold::{Hold, Job, PATIENCE};
use crate::lock;
use crate::open::QuorumMember;

/// The pause after a failed attempt to open a member.
const OPEN_EVERY: Duration = Duration::from_millis(500);
/// How long other threads do not open a store that one opens again. It ends by its time-outs before.
const MAX_OPENING: Duration = Duration::from_secs(10);
/// The mean pause before a release that failed is repeated.
const RELEASE_EVERY: Duration = Duration::from_millis(200);

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

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Jobs to repeat, with their times.
    repeated: Vec<(HostInstant, Job)>,
    is_closed: bool,
}

impl Queue {
    /// Takes up to `most` jobs of different names from the front, since a batch has no order.
    fn batch(&mut self, most: usize) -> Vec<Job> {
        let mut names = HashSet::new();
        let fitting = self.jobs.iter().take(most);
        let fitting = fitting.take_while(|job| names.insert(job.hold.name.hash64()));
        let fitting = fitting.count();
        self.jobs.drain(..fitting).collect()
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
            let mut store = lock(&self.store);
            if let Some(opened) = &store.opened {
                return Ok(Arc::clone(opened));
            }
            let now = self.clock.now();
            if let Some((error, next)) = &mut store.failed {
                if now < *next {
                    return Err(error.clone());
                }
                // One thread opens an unreachable store. The others get the last error meanwhile.
                *next = now + MAX_OPENING;
            }
        }
        // Without the mutex: other threads ask whether the store is open.
        let opened = self.source.open();
        let mut store = lock(&self.store);
        // An operator may have asked at the same time.
        if let Some(opened) = &store.opened {
            return Ok(Arc::clone(opened));
        }
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
        lock(&self.queue).jobs.push_back(job);
        self.posted.notify_one();
    }

    /// Posts the worker's next job, which follows from an answer. Behind it may be a request of another hold for its name.
    pub(crate) fn post_next(&self, job: Job) {
        lock(&self.queue).jobs.push_front(job);
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

    /// Takes up to `most` jobs, and waits for the first one. Returns none at the end.
    pub(crate) fn take(&self, most: usize) -> Vec<Job> {
        let mut queue = lock(&self.queue);
        loop {
            let now = self.clock.now();
            let Queue { jobs, repeated, .. } = &mut *queue;
            let due = repeated.extract_if(.., |(at, _)| *at <= now);
            due.for_each(|(_, job)| jobs.push_front(job));
            if !jobs.is_empty() || queue.is_closed {
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

/// Asks the members at the same time, each on a thread that ends with the answer: a question may hang, and the worker
/// of a member has the renewals. Returns the answers that come until `deadline`.
pub(crate) fn ask_all<T: Send + 'static>(
    members: &[Arc<Member>],
    clock: &dyn Clock,
    deadline: HostInstant,
    question: impl Fn(&Member) -> Result<T, Error> + Clone + Send + 'static,
) -> Vec<Result<T, Error>> {
    let (sender, answers) = mpsc::channel();
    for member in members {
        let (asked, question, reply) = (Arc::clone(member), question.clone(), sender.clone());
        let started = start_thread(format!("lockkeeper-q{}", member.index), move || {
            // The caller may have left.
            let _ = reply.send((asked.index, question(&asked)));
        });
        if let Err(error) = started {
            let _ = sender.send((member.index, Err(error)));
        }
    }
    drop(sender);
    let no_answer = || Error::new(ErrorKind::Unavailable, "the member gave no answer");
    let mut all: Vec<_> = members.iter().map(|_| Err(no_answer())).collect();
    loop {
        let left = deadline.saturating_since(clock.now());
        let Ok((index, answer)) = answers.recv_timeout(left.max(Duration::from_millis(1))) else {
            return all;
        };
        if let Some(at) = all.get_mut(index) {
            *at = answer;
        }
    }
}

/// Starts a thread for a member.
pub(crate) fn start_thread(name: String, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = thread::Builder::new().name(name).spawn(run);
    started.map(drop).map_err(|error| {
        let text = "the system starts no thread for a member of the quorum; see its limits";
        Error::new(ErrorKind::Unavailable, text).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use lockkeeper_local::MemoryProvider;

    use super::*;

    #[derive(Debug, Default)]
    struct Stopped(AtomicU64);

    impl Clock for Stopped {
        fn now(&self) -> HostInstant {
            HostInstant::from_nanos(self.0.load(Ordering::SeqCst))
        }
    }

    /// Otherwise each caller begins at a member that hangs, and waits for it.
    #[test]
    fn member_stays_slow_until_a_quick_answer() {
        let clock = Arc::new(Stopped::default());
        let store: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
        let source = QuorumMember::from(store);
        let member = Member::new(0, source, clock.clone(), Arc::default());
        assert!(!member.is_slow());
        let slow = u64::try_from(PATIENCE.as_nanos()).unwrap() + 1;
        member.in_call(|| clock.0.fetch_add(slow, Ordering::SeqCst));
        assert!(member.is_slow());
        member.in_call(|| assert!(member.is_slow()));
        assert!(!member.is_slow());
    }
}
