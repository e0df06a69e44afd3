//! What the metrics observer records.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use lockkeeper::observers::MetricsObserver;
use lockkeeper::{AcquireOptions, Config, Error, ErrorKind, LeasePolicy, LockKeeper, Observer};
use lockkeeper_testkit::until;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// One metric: the sum of a counter, the value of a gauge, or how many values a histogram has.
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

impl HistogramFn for Value {
    fn record(&self, _: f64) {
        self.change(|it| *it += 1.0);
    }
}

/// The recorder of the process: the metrics by store and text.
#[derive(Default)]
struct Metrics(Mutex<BTreeMap<(String, String), Arc<Value>>>);

impl Metrics {
    fn value(&self, key: &Key) -> Arc<Value> {
        let mut text = key.name().trim_start_matches("lockkeeper_").to_owned();
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
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.value(key))
    }
}

static METRICS: LazyLock<&'static Metrics> = LazyLock::new(|| {
    let metrics: &'static Metrics = Box::leak(Box::default());
    metrics::set_global_recorder(metrics).unwrap();
    metrics
});

fn open(url: &str, observer: &Arc<MetricsObserver>) -> LockKeeper {
    let config = Config::from_url(url).unwrap();
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
            "wait_seconds group=other mode=permit outcome=acquired 1",
            "wait_seconds group=seat:* mode=exclusive outcome=acquired 1",
            "wait_seconds group=seat:* mode=exclusive outcome=busy 1",
            "wait_seconds group=seat:vip:* mode=shared outcome=acquired 1",
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
    has("hold_seconds group=seat:* mode=exclusive 1");
    has("releases_total group=seat:* outcome=done 1");
}

#[test]
fn threads_that_wait_are_counted_while_they_wait() {
    let observer = Arc::new(observer().group_by(|name| Cow::Owned(name.to_string())));
    let keeper = open("memory:waiting", &observer);
    let store = keeper.location();
    let has = |line: &str| lines(&store).iter().any(|it| it == line);
    let first = keeper.lock("a").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(keeper.lock("a").unwrap()));
        until("the waiter is counted", || has("waiting group=a 1"));
        drop(first);
        waiter.join().unwrap();
    });
    assert!(has("waiting group=a 0"));
    assert!(has("handovers_total group=a 1"));
}

#[test]
fn losses_and_outages_are_counted() {
    let observer = Arc::new(observer());
    let keeper = open("memory:lossy", &observer);
    let store = keeper.location();
    let ttl = Duration::from_millis(100);
    let lease = LeasePolicy::Fixed { ttl };
    let options = AcquireOptions::new().lease(lease);
    let guard = keeper.acquire("a", &options).unwrap().unwrap();
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
        ] {
            assert!(lines.contains(&line), "{line}: {lines:?}");
        }
    }
}
