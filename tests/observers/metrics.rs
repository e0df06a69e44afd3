//! What the metrics observer records.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use lockkeeper::clock::ManualClock;
use lockkeeper::observers::MetricsObserver;
use lockkeeper::{AcquireOptions, Config, Error, ErrorKind, LeasePolicy, LockKeeper, Observer};
use lockkeeper_testkit::until;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

use crate::unanswering_store;

/// The sum of a counter, or the value of a gauge.
#[derive(Default)]
struct Value(Mutex<f64>);

impl Value {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(&mut self.0.lock().unwrap());
    }
}

impl CounterFn for Value {
    fn increment(&self, value: u64) {
        self.change(|it| *it += value as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|it| *it = it.max(value as f64));
    }
}

impl GaugeFn for Value {
    fn increment(&self, value: f64) {
        self.change(|it| *it += value);
    }

    fn decrement(&self, value: f64) {
        self.change(|it| *it -= value);
    }

    fn set(&self, value: f64) {
        self.change(|it| *it = value);
    }
}

/// How many values a histogram has, and their sum.
struct Distribution {
    count: Arc<Value>,
    sum: Arc<Value>,
}

impl HistogramFn for Distribution {
    fn record(&self, value: f64) {
        self.count.change(|it| *it += 1.0);
        self.sum.change(|it| *it += value);
    }
}

/// The recorder of the process: the metrics by store and text.
#[derive(Default)]
struct Metrics(Mutex<BTreeMap<(String, String), Arc<Value>>>);

impl Metrics {
    fn value(&self, key: &Key, suffix: &str) -> Arc<Value> {
        let mut text = key.name().trim_start_matches("lockkeeper_").to_owned() + suffix;
        let mut store = String::new();
        for label in key.labels() {
            match label.key() {
                "store" => store = label.value().to_owned(),
                name => text += &format!(" {name}={}", label.value()),
            }
        }
        Arc::clone(self.0.lock().unwrap().entry((store, text)).or_default())
    }
}

impl Recorder for &'static Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key, ""))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key, ""))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Distribution {
            count: self.value(key, "_count"),
            sum: self.value(key, "_sum"),
        }))
    }
}

static METRICS: LazyLock<&'static Metrics> = LazyLock::new(|| {
    let metrics: &'static Metrics = Box::leak(Box::default());
    metrics::set_global_recorder(metrics).unwrap();
    metrics
});

fn open(url: &str, observer: &Arc<MetricsObserver>) -> LockKeeper {
    open_at(&ManualClock::new(), url, observer)
}

/// Opens a keeper on the test's clock.
fn open_at(clock: &ManualClock, url: &str, observer: &Arc<MetricsObserver>) -> LockKeeper {
    let config = Config::from_url(url).unwrap();
    let config = config.clock(Arc::new(clock.clone()));
    lockkeeper::open_config(&config.observer(Arc::clone(observer) as _)).unwrap()
}

/// Makes an observer. The process has one recorder.
fn observer() -> MetricsObserver {
    LazyLock::force(&METRICS);
    MetricsObserver::new()
}

/// Returns the metrics of a store as lines.
fn lines(store: &str) -> Vec<String> {
    let metrics = METRICS.0.lock().unwrap();
    let of_store = metrics.iter().filter(|((of, _), _)| of == store);
    let lines = of_store.map(|((_, text), value)| format!("{text} {}", value.0.lock().unwrap()));
    lines.collect()
}

#[test]
fn locks_are_counted_by_store_group_mode_and_outcome() {
    let observer = Arc::new(observer().group_prefixes(["seat:", "seat:vip:"]));
    let keeper = open("memory:counted", &observer);
    let store = keeper.location();

    let seat = keeper.lock("seat:42").unwrap();
    let _vip = keeper.lock_shared("seat:vip:1").unwrap();
    assert!(keeper.try_lock("seat:42").unwrap().is_none());
    let semaphore = keeper.semaphore("reports", 2).unwrap();
    let permit = semaphore.acquire().unwrap();
    let (begun, counted): (Vec<_>, Vec<_>) = lines(&store)
        .into_iter()
        .partition(|line| line.contains("_total") && line.ends_with(" 0"));
    for line in [
        "acquisitions_total group=seat:* mode=exclusive outcome=unavailable 0",
        "lost_total group=seat:* 0",
        "outages_total 0",
        "releases_total group=other outcome=unknown 0",
        "renewals_total group=seat:vip:* outcome=unknown 0",
    ] {
        assert!(begun.iter().any(|it| it == line), "{line}: {begun:#?}");
    }
    assert_eq!(
        counted,
        [
            "acquisitions_total group=other mode=permit outcome=acquired 1",
            "acquisitions_total group=seat:* mode=exclusive outcome=acquired 1",
            "acquisitions_total group=seat:* mode=exclusive outcome=busy 1",
            "acquisitions_total group=seat:vip:* mode=shared outcome=acquired 1",
            "contended_total group=seat:* 1",
            "held group=other mode=permit 1",
            "held group=seat:* mode=exclusive 1",
            "held group=seat:vip:* mode=shared 1",
            "wait_seconds_count group=other mode=permit outcome=acquired 1",
            "wait_seconds_count group=seat:* mode=exclusive outcome=acquired 1",
            "wait_seconds_count group=seat:* mode=exclusive outcome=busy 1",
            "wait_seconds_count group=seat:vip:* mode=shared outcome=acquired 1",
            "wait_seconds_sum group=other mode=permit outcome=acquired 0",
            "wait_seconds_sum group=seat:* mode=exclusive outcome=acquired 0",
            "wait_seconds_sum group=seat:* mode=exclusive outcome=busy 0",
            "wait_seconds_sum group=seat:vip:* mode=shared outcome=acquired 0",
            "waiting group=other 0",
            "waiting group=seat:* 0",
            "waiting group=seat:vip:* 0",
        ]
    );
    drop((seat, permit));
    let lines = lines(&store);
    let has = |line: &str| assert!(lines.iter().any(|it| it == line), "{line}: {lines:#?}");
    has("held group=other mode=permit 0");
    has("held group=seat:* mode=exclusive 0");
    has("held group=seat:vip:* mode=shared 1");
    has("hold_seconds_count group=seat:* mode=exclusive 1");
    has("releases_total group=seat:* outcome=done 1");
}

#[test]
fn threads_that_wait_are_counted_while_they_wait() {
    let (clock, second) = (ManualClock::new(), Duration::from_secs(1));
    let observer = Arc::new(observer().group_by(|name| Cow::Owned(name.to_string())));
    let keeper = open_at(&clock, "memory:waiting?handover_time=10s", &observer);
    let store = keeper.location();
    let has = |line: &str| lines(&store).iter().any(|it| it == line);
    let first = keeper.lock("a").unwrap();
    let next = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| keeper.lock("a").unwrap());
        // It is in the queue only when it is contended.
        until("the waiter is contended", || {
            has("contended_total group=a 1")
        });
        assert!(has("waiting group=a 1"));
        clock.advance(2 * second);
        drop(first);
        waiter.join().unwrap()
    });
    clock.advance(3 * second);
    drop(next);
    for line in [
        "waiting group=a 0",
        "handovers_total group=a 1",
        "wait_seconds_sum group=a mode=exclusive outcome=acquired 2",
        "hold_seconds_sum group=a mode=exclusive 5",
    ] {
        assert!(has(line), "{line}: {:#?}", lines(&store));
    }
}

#[test]
fn losses_and_outages_are_counted() {
    let (clock, observer) = (ManualClock::new(), Arc::new(observer()));
    let keeper = open_at(&clock, "memory:lossy", &observer);
    let store = keeper.location();
    let ttl = Duration::from_secs(10);
    let lease = LeasePolicy::Fixed { ttl };
    let options = AcquireOptions::new().lease(lease);
    let guard = keeper.acquire("a", &options).unwrap().unwrap();
    clock.advance(ttl);
    let has = |line: &str| lines(&store).iter().any(|it| it == line);
    until("the loss is counted", || has("lost_total group=* 1"));
    assert!(has("held group=* mode=exclusive 1"));
    drop(guard);
    let released = || has("releases_total group=* outcome=already_lost 1");
    until("the end is counted", released);
    assert!(has("held group=* mode=exclusive 0"));

    // Two keepers have the same store.
    let gone = Error::new(ErrorKind::Unavailable, "the test's store is gone");
    observer.outage_began(&store, &gone);
    observer.outage_began(&store, &gone);
    assert!(has("store_unreachable 2") && has("outages_total 2"));
    observer.outage_ended(&store, ttl);
    assert!(has("store_unreachable 1") && has("outages_total 2"));
}

#[test]
fn usage_of_the_store_is_collected() {
    let observer = Arc::new(observer());
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut commands = 0;
    // The second keeper is opened in place of the first one.
    for locks in [2, 1] {
        let keeper = open(&url, &observer);
        (0..locks).for_each(|_| drop(keeper.lock("a").unwrap()));
        let before = commands;
        // Once more, so that nothing is counted twice.
        for _ in 0..2 {
            observer.collect(&keeper);
            commands = before + keeper.usage().unwrap().commands;
        }
        let lines = lines(&keeper.location());
        for line in [
            "pending_releases 0".to_owned(),
            format!("store_commands_total {commands}"),
            "store_connections 1".to_owned(),
        ] {
            assert!(lines.contains(&line), "{line}: {lines:?}");
        }
    }
}

#[test]
fn renewals_and_releases_are_counted_by_outcome() {
    let observer = Arc::new(observer());
    let keeper = open("memory:renewing", &observer);
    let guard = keeper.lock("a").unwrap();
    (0..2).for_each(|_| guard.renew().unwrap());
    let unanswering = unanswering_store::open(Arc::clone(&observer) as _);
    let unanswered = unanswering.lock("a").unwrap();
    unanswered.renew().unwrap_err();
    unanswered.release().unwrap_err();
    for (keeper, counted) in [
        (
            &keeper,
            ["renewals_total group=* outcome=renewed 2"].as_slice(),
        ),
        (
            &unanswering,
            &[
                "releases_total group=* outcome=unknown 1",
                "renewals_total group=* outcome=unknown 1",
            ],
        ),
    ] {
        let mut lines = lines(&keeper.location());
        lines.retain(|line| line.contains("outcome=") && !line.ends_with(" 0"));
        lines.retain(|line| line.starts_with("re"));
        assert_eq!(lines, counted);
    }
}

#[test]
fn warnings_and_fallbacks_are_counted() {
    let observer = observer();
    let gone = Error::new(ErrorKind::Unavailable, "the test's store is gone");
    observer.warning("far:warned", "its clock is slow");
    observer.fallback("far:warned", "memory:fallback", &gone);
    assert_eq!(lines("far:warned"), ["warnings_total 1"]);
    assert_eq!(lines("memory:fallback"), ["fallbacks_total 1"]);
}

/// Returns the metrics that a text names, without what an exporter appends to histograms.
fn named_metrics(text: &str) -> BTreeSet<&str> {
    let names = text.split("lockkeeper_").skip(1).map(|rest| {
        let mut words = rest.split(|c: char| c != '_' && !c.is_ascii_lowercase());
        let name = words.next().unwrap();
        let mut suffixes = ["_bucket", "_sum", "_count"].iter();
        let base = suffixes.find_map(|suffix| name.strip_suffix(suffix));
        base.unwrap_or(name)
    });
    names.collect()
}

#[test]
fn documented_metrics_are_those_that_the_observer_emits() {
    let observer = Arc::new(observer());
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let keeper = open(&url, &observer);
    let store = keeper.location();
    drop(keeper.lock("a").unwrap());
    observer.collect(&keeper);
    let gone = Error::new(ErrorKind::Unavailable, "the test's store is gone");
    observer.outage_began(&store, &gone);
    observer.warning(&store, "its clock is slow");
    observer.fallback("far:", &store, &gone);
    let lines = lines(&store).join("\nlockkeeper_");
    let lines = format!("lockkeeper_{lines}");
    let emitted = named_metrics(&lines);

    let dashboard = include_str!("../../docs/grafana.json");
    serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
    assert_eq!(named_metrics(dashboard), emitted, "docs/grafana.json");
    let page = include_str!("../../docs/observing.md");
    let unknown: Vec<_> = named_metrics(page).difference(&emitted).copied().collect();
    assert!(unknown.is_empty(), "docs/observing.md: {unknown:?}");
}
