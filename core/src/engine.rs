//! What is between callers and a store of any kind: acquiring, waiting, handing over, renewing and
//! releasing.

mod acquire;
mod background;
mod backoff;
mod close;
mod deadline;
mod give_back;
mod head;
mod health;
pub(crate) mod hold;
mod holds;
pub(crate) mod key;
pub(crate) mod lock_all;
mod name_state;
pub(crate) mod observer;
pub(crate) mod opening;
mod parts;
mod queue;
mod release;
mod renewal;
mod replies;
mod report;
mod retry;
mod threads;
mod tickets;
pub(crate) mod timer;
mod travel;
mod waiter;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::contract::provider::{GRACE, LockProvider};
use crate::engine::observer::Notifier;
use crate::engine::timer::Timer;
use crate::error::Error;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::Settings;

use background::{BackgroundUse, LastingUse};
use close::Closing;
use give_back::{Return, ReturnKind};
use hold::Hold;
use key::Key;
use parts::Parts;
use queue::Queue;
use report::OutageReports;
use threads::Threads;

/// The longest time for which a guard's holder, or the end of a keeper, waits for a release that is repeated. It is twice
/// the response time-out of the network stores, so one request without a reply leaves time for another. What bounds an
/// acquisition is [`AcquireRequest::end`](crate::AcquireRequest::end).
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// The longest that the end of a keeper waits for its background threads.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);
/// The longest that the end of a keeper waits for them while a release is left. The guard that ends the keeper may
/// have waited for the store already.
const LATE_CLOSE_LIMIT: Duration = Duration::from_millis(20);

/// The state of one keeper, its clones and its guards.
pub(crate) struct Engine {
    pub(crate) provider: Arc<dyn LockProvider>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    notifier: Notifier,
    /// Names the store in the events that observers receive.
    location: String,
    queue: Queue,
    /// The thread that watches deadlines.
    timer: Timer,
    parts: Parts,
    /// The threads that send batches, renew leases, and call observers and callbacks of losses.
    threads: Arc<Threads<JobKind, Job>>,
    /// The threads that give back.
    returns: Arc<Threads<ReturnKind, (LastingUse, Return)>>,
    background: Arc<BackgroundUse>,
    /// The number of threads that wait in the queue with a deadline.
    waiting: AtomicUsize,
    is_started: AtomicBool,
    /// Whether a thread asks the store who has a name.
    pub(crate) is_naming_holder: AtomicBool,
    closing: Closing,
    outage_reports: OutageReports,
}

/// The most threads for the jobs of one kind, where the store has one part.
const MOST_OF_KIND: usize = 4;
/// The most threads for the jobs of one kind and part, where the store has several parts. So parts that hang leave
/// threads for the others.
const MOST_OF_KIND_OF_SEVERAL: usize = 2;
/// The most threads that give back to one part, where the store has several parts. A release keeps its thread until the
/// outage of its part ends.
const MOST_RETURNS_OF_SEVERAL: usize = 1;

/// What a worker does.
enum Job {
    /// Sends the batches of a part, from this number on.
    Send {
        used: LastingUse,
        part: usize,
        number: u64,
    },
    /// Renews a batch of leases of a part.
    Renew(usize, Vec<Arc<Hold>>),
    NotifyLost(Arc<Hold>),
    NotifyOutages,
}

/// The kind of a job, with the part of the store that it asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobKind {
    Send(usize),
    Renew(usize),
    Notify,
}

impl Engine {
    pub(crate) fn open(
        provider: Arc<dyn LockProvider>,
        settings: Settings,
        clock: Arc<dyn Clock>,
        notifier: Notifier,
    ) -> Arc<EngineOwner> {
        let queue = {
            let (clock, settings) = (Arc::clone(&clock), settings.clone());
            let hand_over = move |hold: &Hold, terms| hold.hand_over(terms, clock.now(), &settings);
            Queue::new(Box::new(hand_over))
        };
        let capabilities = provider.capabilities();
        let (most_of_kind, most_returns) = match capabilities.parts() {
            1 => (MOST_OF_KIND, MOST_OF_KIND),
            _ => (MOST_OF_KIND_OF_SEVERAL, MOST_RETURNS_OF_SEVERAL),
        };
        let engine = Arc::new(Self {
            capabilities,
            location: provider.location(),
            provider,
            settings,
            timer: Timer::new(Arc::clone(&clock)),
            clock,
            notifier,
            queue,
            parts: Parts::new(capabilities.parts()),
            threads: Threads::new("lockkeeper-work", most_of_kind),
            returns: Threads::new("lockkeeper-return", most_returns),
            background: Arc::new(BackgroundUse::new()),
            waiting: AtomicUsize::new(0),
            is_started: AtomicBool::new(false),
            is_naming_holder: AtomicBool::new(false),
            closing: Closing::new(),
            outage_reports: OutageReports::default(),
        });
        engine.provider.watch_leases(engine.lease_verifier());
        Arc::new(EngineOwner(engine))
    }

    /// Returns how much earlier than the store a guard calls itself lost.
    pub(crate) fn margin(&self, ttl: Duration) -> Duration {
        let default = (ttl / 10).min(Duration::from_secs(1));
        let margin = self.settings.margin.unwrap_or(default);
        margin.max(self.capabilities.least_margin(ttl)).min(ttl / 2)
    }

    /// Returns whether a guard of this keeper has a name.
    pub(crate) fn is_held_here(&self, key: Key<'_>) -> bool {
        self.queue.is_held(key)
    }

    /// Adds the locks and the store to an error that concerns all names of a set.
    fn located_all(&self, names: &[(LockName, Mode)], error: Error) -> Error {
        let error = error.with_names(names.iter().map(|(name, _)| name));
        error.with_backend(self.provider.backend())
    }

    /// Adds the lock and the store to an error.
    pub(crate) fn located(&self, name: &LockName, error: Error) -> Error {
        error.with_name(name).with_backend(self.provider.backend())
    }
}

/// What the clones of a keeper share. The drop of the last clone waits for the releases of dropped
/// guards, at most as long as a request takes.
pub(crate) struct AwaitReleases(Arc<EngineOwner>);

impl AwaitReleases {
    pub(crate) fn new(engine: &Arc<EngineOwner>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(engine)))
    }
}

impl Drop for AwaitReleases {
    fn drop(&mut self) {
        self.0.collect_owed();
        self.0.wait_for_releases(ATTEMPT_LIMIT);
    }
}

/// Owns the engine for its keepers and guards, which share it: the engine ends with the last of them.
pub(crate) struct EngineOwner(Arc<Engine>);

impl Deref for EngineOwner {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for EngineOwner {
    fn drop(&mut self) {
        self.collect_owed();
        if !self
            .parts
            .iter()
            .any(|part| part.is_silent(self.clock.now()))
        {
            self.wait_for_releases(GRACE);
        }
        self.closing.ended.cancel();
        self.timer.stop();
        // What goes back to the store is finished also without a keeper.
        self.threads.stop(|kind| matches!(kind, JobKind::Send(_)));
        for (_, what) in self.returns.stop(|_| true) {
            self.end_return(what);
        }
        self.background.end(match self.parts.releases() {
            0 => CLOSE_LIMIT,
            _ => LATE_CLOSE_LIMIT,
        });
        // Report this last: the releases above can still begin an outage. Each beginning that observers are told of
        // needs an end.
        self.end_outages();
    }
}
