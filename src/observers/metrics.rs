//! Gauges, histograms and counters for the crate `metrics`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{SharedString, Unit, counter, gauge, histogram};
use metrics::{describe_counter, describe_gauge, describe_histogram};

use super::outcome;
use crate::{Error, FencingToken, LockKeeper, LockName, Mode, ObservedLock, Observer, Released};

const ACQUISITIONS: &str = "lockkeeper_acquisitions_total";
const CONTENDED: &str = "lockkeeper_contended_total";
const HANDOVERS: &str = "lockkeeper_handovers_total";
const LOST: &str = "lockkeeper_lost_total";
const RENEWALS: &str = "lockkeeper_renewals_total";
const RELEASES: &str = "lockkeeper_releases_total";
const OUTAGES: &str = "lockkeeper_outages_total";

/// What [`outcome`] returns.
const OUTCOMES: [&str; 7] = [
    "acquired",
    "busy",
    "cancelled",
    "unavailable",
    "unknown",
    "pool_exhausted",
    "error",
];

type Group = Box<dyn Fn(&LockName) -> Cow<'static, str> + Send + Sync>;

/// Reports what a keeper does to the recorder of the crate [`metrics`](https://docs.rs/metrics).
///
/// Every metric has the label `store`, the [location](LockKeeper::location) of the keeper. Metrics of locks have
/// the label `group`, which the application chooses. With the names themselves as a label, the number of time
/// series would grow without end. By default, all names are in the group `*`. The counters of a group and of
/// outages begin with 0 at the first acquisition: a rate cannot count the event that creates a counter.
///
/// | metric | kind | other labels | what it counts |
/// |---|---|---|---|
/// | `lockkeeper_waiting` | gauge | | acquisitions that are under way |
/// | `lockkeeper_held` | gauge | `mode` | guards that live, lost ones included |
/// | `lockkeeper_acquisitions_total` | counter | `mode`, `outcome` | acquisitions that have ended: `acquired`, `busy`, `cancelled`, `unavailable`, `unknown`, `pool_exhausted` or `error` |
/// | `lockkeeper_contended_total` | counter | | acquisitions that found another holder |
/// | `lockkeeper_handovers_total` | counter | | acquisitions that got the lease of another thread |
/// | `lockkeeper_wait_seconds` | histogram | `mode`, `outcome` | the time of an acquisition |
/// | `lockkeeper_hold_seconds` | histogram | `mode` | the time from the grant to the end of the guard |
/// | `lockkeeper_lost_total` | counter | | guards that were lost |
/// | `lockkeeper_renewals_total` | counter | `outcome` | renewals that were `renewed`, or `unknown`: without an answer |
/// | `lockkeeper_releases_total` | counter | `outcome` | ends of guards: `done`, `already_lost`, or `unknown`: without an answer |
/// | `lockkeeper_store_unreachable` | gauge | | keepers whose last request found the store out of reach |
/// | `lockkeeper_outages_total` | counter | | outages that have begun |
/// | `lockkeeper_warnings_total` | counter | | warnings about the store at opening, from 1 on; `store` is its URL without keys |
/// | `lockkeeper_fallbacks_total` | counter | | fallbacks that were used, from 1 on; `store` is the URL of the fallback without keys |
/// | `lockkeeper_store_commands_total` | counter | | commands or statements, by [`collect`](Self::collect) |
/// | `lockkeeper_store_connections` | gauge | | open connections, by [`collect`](Self::collect) |
/// | `lockkeeper_pending_releases` | gauge | | releases without an answer, by [`collect`](Self::collect) |
///
/// ```
/// use std::sync::Arc;
/// use lockkeeper::Config;
/// use lockkeeper::observers::MetricsObserver;
///
/// // Install the program's recorder first.
/// let metrics = Arc::new(MetricsObserver::new().group_prefixes(["seat:", "report:"]));
/// let config = Config::from_url("memory:")?.observer(Arc::clone(&metrics) as _);
/// let keeper = lockkeeper::open_config(&config)?;
/// drop(keeper.lock("seat:42")?); // counts for the group `seat:*`
///
/// metrics.collect(&keeper); // before each scrape, or every few seconds
/// # Ok::<(), lockkeeper::Error>(())
/// ```
pub struct MetricsObserver {
    group: Group,
    /// The store, group and mode of the locks whose counters have begun.
    begun: Mutex<HashSet<(String, SharedString, &'static str)>>,
    /// The commands of each store that are counted already.
    commands: Mutex<HashMap<String, u64>>,
}

impl MetricsObserver {
    /// Makes an observer with one group for all names, and describes the metrics to the recorder.
    ///
    /// Install the recorder before: it does not learn the descriptions later.
    pub fn new() -> Self {
        describe();
        Self {
            group: Box::new(|_| Cow::Borrowed("*")),
            begun: Mutex::default(),
            commands: Mutex::default(),
        }
    }

    /// Sets the groups by the beginnings of names: a name that begins with `seat:` is in the group `seat:*`.
    ///
    /// The longest prefix counts. All other names are in the group `other`.
    #[must_use]
    pub fn group_prefixes<P: Into<String>>(self, prefixes: impl IntoIterator<Item = P>) -> Self {
        let prefixes = prefixes.into_iter().map(Into::into);
        let mut prefixes: Vec<String> = prefixes.collect();
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        self.group_by(move |name| {
            let mut prefixes = prefixes.iter();
            match prefixes.find(|prefix| name.as_str().starts_with(prefix.as_str())) {
                Some(prefix) => Cow::Owned(format!("{prefix}*")),
                None => Cow::Borrowed("other"),
            }
        })
    }

    /// Sets the group of each name by a function. It is called several times for each lock.
    ///
    /// Return few different texts: each is a time series of every metric, for as long as the program runs.
    #[must_use]
    pub fn group_by(
        mut self,
        group: impl Fn(&LockName) -> Cow<'static, str> + Send + Sync + 'static,
    ) -> Self {
        self.group = Box::new(group);
        self
    }

    /// Records what the keeper has cost its store so far: [`LockKeeper::usage`] and
    /// [`LockKeeper::pending_releases`].
    ///
    /// Nothing tells the observer of single commands. Call it before each scrape, or every few seconds, for one
    /// keeper of each location. A keeper that was opened in place of another one goes on with its counter.
    pub fn collect(&self, keeper: &LockKeeper) {
        let store = keeper.location();
        let pending = keeper.pending_releases();
        gauge!("lockkeeper_pending_releases", "store" => store.clone()).set(pending as f64);
        // Before the count is read: of two calls, the later one must not read the smaller count.
        let mut counted = locked(&self.commands);
        if let Some(usage) = keeper.usage() {
            let before = counted.insert(store.clone(), usage.commands).unwrap_or(0);
            // A keeper that was opened anew counts from 0.
            let more = usage.commands.checked_sub(before).unwrap_or(usage.commands);
            counter!("lockkeeper_store_commands_total", "store" => store.clone()).increment(more);
            gauge!("lockkeeper_store_connections", "store" => store).set(usage.connections);
        }
    }

    fn labels(&self, lock: &ObservedLock<'_>) -> (String, SharedString) {
        (lock.store.to_owned(), (self.group)(lock.name).into())
    }

    /// Begins the counters of a group and of its store with 0.
    fn begin(&self, lock: &ObservedLock<'_>) {
        let (store, group) = self.labels(lock);
        if !locked(&self.begun).insert((store, group, mode(lock))) {
            return;
        }
        counter!(OUTAGES, "store" => lock.store.to_owned()).increment(0);
        for name in [CONTENDED, HANDOVERS, LOST] {
            self.count(name, lock, 0);
        }
        for outcome in ["renewed", "unknown"] {
            self.count_outcome(RENEWALS, lock, outcome, 0);
        }
        for outcome in ["done", "already_lost", "unknown"] {
            self.count_outcome(RELEASES, lock, outcome, 0);
        }
        for outcome in OUTCOMES {
            counter!(ACQUISITIONS, &self.labels_of_end(lock, outcome)).increment(0);
        }
    }

    fn waiting(&self, lock: &ObservedLock<'_>) -> metrics::Gauge {
        let (store, group) = self.labels(lock);
        gauge!("lockkeeper_waiting", "store" => store, "group" => group)
    }

    fn held(&self, lock: &ObservedLock<'_>) -> metrics::Gauge {
        let (store, group) = self.labels(lock);
        gauge!("lockkeeper_held", "store" => store, "group" => group, "mode" => mode(lock))
    }

    fn labels_of_end(
        &self,
        lock: &ObservedLock<'_>,
        outcome: &'static str,
    ) -> [(&'static str, SharedString); 4] {
        let (store, group) = self.labels(lock);
        [
            ("store", store.into()),
            ("group", group),
            ("mode", mode(lock).into()),
            ("outcome", outcome.into()),
        ]
    }

    fn end_acquisition(&self, lock: &ObservedLock<'_>, waited: Duration, outcome: &'static str) {
        self.waiting(lock).decrement(1);
        let labels = self.labels_of_end(lock, outcome);
        histogram!("lockkeeper_wait_seconds", &labels).record(waited);
        counter!(ACQUISITIONS, &labels).increment(1);
    }

    /// Counts events of a lock.
    fn count(&self, name: &'static str, lock: &ObservedLock<'_>, events: u64) {
        let (store, group) = self.labels(lock);
        counter!(name, "store" => store, "group" => group).increment(events);
    }

    fn count_outcome(
        &self,
        name: &'static str,
        lock: &ObservedLock<'_>,
        outcome: &'static str,
        events: u64,
    ) {
        let (store, group) = self.labels(lock);
        counter!(name, "store" => store, "group" => group, "outcome" => outcome).increment(events);
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the mode without the limit of a permit, of which there may be many.
fn mode(lock: &ObservedLock<'_>) -> &'static str {
    match lock.mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permit { .. } => "permit",
    }
}

fn describe() {
    describe_gauge!(
        "lockkeeper_waiting",
        "acquisitions of locks that are under way"
    );
    describe_gauge!("lockkeeper_held", "guards of locks that live");
    describe_counter!(ACQUISITIONS, "acquisitions that have ended, by outcome");
    describe_counter!(CONTENDED, "acquisitions that found another holder");
    describe_counter!(
        HANDOVERS,
        "acquisitions that got the lease of another thread"
    );
    describe_histogram!(
        "lockkeeper_wait_seconds",
        Unit::Seconds,
        "the time of an acquisition"
    );
    describe_histogram!(
        "lockkeeper_hold_seconds",
        Unit::Seconds,
        "the time from the grant to the end of the guard"
    );
    describe_counter!(LOST, "guards that were lost");
    describe_counter!(RENEWALS, "renewals of leases, by outcome");
    describe_counter!(RELEASES, "ends of guards, by outcome");
    describe_gauge!(
        "lockkeeper_store_unreachable",
        "keepers whose last request found the store out of reach"
    );
    describe_counter!(OUTAGES, "outages of the store that have begun");
    describe_counter!("lockkeeper_warnings_total", "warnings about the store");
    describe_counter!("lockkeeper_fallbacks_total", "fallbacks that were used");
    describe_counter!(
        "lockkeeper_store_commands_total",
        "commands or statements that the store was sent"
    );
    describe_gauge!(
        "lockkeeper_store_connections",
        "open connections to the store"
    );
    describe_gauge!(
        "lockkeeper_pending_releases",
        "releases that the store has not answered"
    );
}

impl Observer for MetricsObserver {
    fn requested(&self, lock: &ObservedLock<'_>) {
        self.begin(lock);
        self.waiting(lock).increment(1);
    }

    fn acquired(
        &self,
        lock: &ObservedLock<'_>,
        _token: FencingToken,
        waited: Duration,
        handed_over: bool,
    ) {
        self.end_acquisition(lock, waited, "acquired");
        self.held(lock).increment(1);
        if handed_over {
            self.count(HANDOVERS, lock, 1);
        }
    }

    fn contended(&self, lock: &ObservedLock<'_>) {
        self.count(CONTENDED, lock, 1);
    }

    fn not_acquired(&self, lock: &ObservedLock<'_>, waited: Duration, error: Option<&Error>) {
        self.end_acquisition(lock, waited, outcome(error));
    }

    fn renewed(&self, lock: &ObservedLock<'_>, _token: FencingToken) {
        self.count_outcome(RENEWALS, lock, "renewed", 1);
    }

    fn renewal_unknown(&self, lock: &ObservedLock<'_>, _token: FencingToken, _error: &Error) {
        self.count_outcome(RENEWALS, lock, "unknown", 1);
    }

    fn lost(&self, lock: &ObservedLock<'_>, _token: FencingToken) {
        self.count(LOST, lock, 1);
    }

    fn released(
        &self,
        lock: &ObservedLock<'_>,
        _token: FencingToken,
        held: Duration,
        result: &Result<Released, Error>,
    ) {
        self.held(lock).decrement(1);
        let (store, group) = self.labels(lock);
        histogram!("lockkeeper_hold_seconds", "store" => store, "group" => group, "mode" => mode(lock))
            .record(held);
        let outcome = match result {
            Ok(Released::Done) => "done",
            Ok(Released::AlreadyLost) => "already_lost",
            Err(_) => "unknown",
        };
        self.count_outcome(RELEASES, lock, outcome, 1);
    }

    fn outage_began(&self, store: &str, _reason: &Error) {
        counter!(OUTAGES, "store" => store.to_owned()).increment(1);
        gauge!("lockkeeper_store_unreachable", "store" => store.to_owned()).increment(1);
    }

    fn outage_ended(&self, store: &str, _lasted: Duration) {
        gauge!("lockkeeper_store_unreachable", "store" => store.to_owned()).decrement(1);
    }

    fn warning(&self, store: &str, _text: &str) {
        counter!("lockkeeper_warnings_total", "store" => store.to_owned()).increment(1);
    }

    fn fallback(&self, _from: &str, to: &str, _reason: &Error) {
        counter!("lockkeeper_fallbacks_total", "store" => to.to_owned()).increment(1);
    }
}
