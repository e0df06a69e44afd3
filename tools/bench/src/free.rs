//! Measures the acquire and release of a free name.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use lockkeeper::observers::{MetricsObserver, TracingObserver};
use lockkeeper::{Config, LockKeeper, LockName};
use parking_lot::Mutex;

use crate::pinning::Pinned;
use crate::raw::Done;
use crate::row::{Row, Rows, median};
use crate::store::{Kind, Store};

/// The number of rounds. They are short, so that other load of the machine falls on both sides.
const ROUNDS: usize = 150;
/// The other work of a thread between two pairs, where it has some, and the pairs of a round.
const WORK: Duration = Duration::from_millis(1);
const PAIRS_WITH_WORK: u32 = 10;

/// The result of alternate rounds.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    /// The medians of the seconds of a pair.
    floor: f64,
    ours: f64,
    /// The median of the ratios.
    ratio: f64,
}

/// Measures `floor` and `ours` alternately, in rounds of `pairs` pairs.
pub(crate) fn alternately(
    pairs: u32,
    floor: impl FnMut() -> Done,
    ours: impl FnMut() -> Done,
) -> Done<Pairs> {
    let time = |pair: &mut dyn FnMut() -> Done| {
        let began = Instant::now();
        (0..pairs).try_for_each(|_| pair())?;
        Ok(began.elapsed().as_secs_f64() / f64::from(pairs))
    };
    rounds(time, floor, ours)
}

/// Measures as [`alternately`] does, with a sleep between two pairs, which is not counted: a thread has other work, too.
fn with_work_between(floor: impl FnMut() -> Done, ours: impl FnMut() -> Done) -> Done<Pairs> {
    let time = |pair: &mut dyn FnMut() -> Done| {
        let mut spent = Duration::ZERO;
        for _ in 0..PAIRS_WITH_WORK {
            let began = Instant::now();
            pair()?;
            spent += began.elapsed();
            thread::sleep(WORK);
        }
        Ok(spent.as_secs_f64() / f64::from(PAIRS_WITH_WORK))
    };
    rounds(time, floor, ours)
}

/// Measures rounds of both alternately. `time` returns the time of one pair.
fn rounds(
    time: impl Fn(&mut dyn FnMut() -> Done) -> Done<f64>,
    mut floor: impl FnMut() -> Done,
    mut ours: impl FnMut() -> Done,
) -> Done<Pairs> {
    let (mut floors, mut all, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=ROUNDS {
        let (low, high) = (time(&mut floor)?, time(&mut ours)?);
        if round > 0 {
            floors.push(low);
            all.push(high);
            ratios.push(high / low);
        }
    }
    Ok(Pairs {
        floor: median(floors),
        ours: median(all),
        ratio: median(ratios),
    })
}

pub(crate) fn row(what: impl Into<String>, pairs: Pairs, budget: f64) -> Row {
    let show = |seconds: f64| match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s => format!("{:.1} µs", s * 1e6),
    };
    Row {
        value: pairs.ratio,
        ..Row::times(what, pairs.ours, pairs.floor, show, budget)
    }
}

pub(crate) fn pair(keeper: &LockKeeper, name: &LockName) -> Done {
    drop(keeper.lock(name)?);
    Ok(())
}

/// A `parking_lot::Mutex` for each name, in a sharded map. As names are arbitrary, the first user
/// inserts the mutex, and the last holder removes it.
struct ShardedMap {
    hasher: RandomState,
    shards: Vec<Mutex<Names>>,
}

type Names = HashMap<Arc<str>, Arc<Mutex<()>>, RandomState>;

impl ShardedMap {
    fn pair(&self, name: &str) -> Option<()> {
        let shard = self
            .shards
            .get(self.hasher.hash_one(name) as usize % self.shards.len())?;
        let mutex = {
            let mut names = shard.lock();
            match names.get(name) {
                Some(mutex) => Arc::clone(mutex),
                None => Arc::clone(names.entry(Arc::from(name)).or_default()),
            }
        };
        drop(mutex.lock());
        let mut names = shard.lock();
        drop(mutex);
        if names
            .get(name)
            .is_some_and(|mutex| Arc::strong_count(mutex) == 1)
        {
            names.remove(name);
        }
        Some(())
    }
}

/// The rows in this process.
pub(crate) fn in_process(kind: Kind) -> Rows {
    let map = ShardedMap {
        hasher: RandomState::new(),
        shards: (0..32).map(|_| Mutex::default()).collect(),
    };
    let name = LockName::new("seat:42")?;
    let plain = Config::from_url("memory:")?;
    // This program installs neither a subscriber of tracing nor a recorder of metrics.
    let traced = plain.clone().observer(Arc::new(TracingObserver::new()));
    let counted = plain.clone().observer(Arc::new(MetricsObserver::new()));
    let mut rows = Vec::new();
    for (what, config, budget) in [
        ("lock + drop, in-process", plain, 3.0),
        ("  with TracingObserver, no subscriber", traced, 3.5),
        ("  with MetricsObserver, no recorder", counted, 10.0),
    ] {
        let keeper = lockkeeper::open_config(&config)?;
        let made = alternately(
            kind.pairs(),
            || map.pair("seat:42").ok_or_else(|| "no shard".into()),
            || pair(&keeper, &name),
        )?;
        rows.push(row(what, made, budget));
    }
    Ok(rows)
}

/// The row of a store. The floor is the store's two raw requests.
pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let _pinned = Pinned::to_own_cores(store.pid())?;
    let keeper = store.open("")?;
    let name = LockName::new("seat:42")?;
    let mut raw = store.raw()?;
    let pairs = alternately(kind.pairs(), || raw.pair(), || pair(&keeper, &name))?;
    let with_work = match kind {
        Kind::Memory | Kind::Sqlite => None,
        _ => Some(with_work_between(|| raw.pair(), || pair(&keeper, &name))?),
    };
    let (shown, budget) = match kind {
        Kind::Sqlite => ("SQLite", 1.3),
        // A drop waits for nothing there, and the floor waits for both replies.
        Kind::Etcd => ("etcd", 0.75),
        Kind::Redis | Kind::Postgres => (kind.name(), 0.75),
        _ => (kind.name(), 1.05),
    };
    let mut rows = vec![row(format!("lock + drop, {shown}"), pairs, budget)];
    let what = "  with 1 ms of other work between pairs";
    rows.extend(with_work.map(|pairs| row(what, pairs, 0.75)));
    Ok(rows)
}
