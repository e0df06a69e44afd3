//! Many threads, each with a free name of its own.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{LockKeeper, LockName};
use lockkeeper_testkit::RedisCluster;

use crate::raw::{Done, Raw};
use crate::row::{NONE, Row, Rows, median};
use crate::store::{Kind, Store, redis_kind};
use crate::threads::together;
use crate::wakes::beside_blocked;

const THREADS: usize = 64;
const RUNS: usize = 5;
pub(crate) const RUN: Duration = Duration::from_millis(400);
/// No node of the cluster is replaced.
const NEVER: Duration = Duration::from_secs(86_400);

/// What one thread did.
pub(crate) struct Tally {
    pub(crate) began: Instant,
    pub(crate) grants: u32,
    /// How long the thread slept between pairs.
    idle: Duration,
    longest_wait: Duration,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            grants: 0,
            idle: Duration::ZERO,
            longest_wait: Duration::ZERO,
        }
    }

    /// Sleeps between two pairs, as a thread does that has other work.
    pub(crate) fn pause(&mut self, span: Duration) {
        let began = Instant::now();
        thread::sleep(span);
        self.idle += began.elapsed();
    }

    /// Counts a grant that is asked for since `asked`.
    pub(crate) fn add(&mut self, asked: Instant) {
        self.grants += 1;
        self.longest_wait = self.longest_wait.max(asked.elapsed());
    }
}

/// What the threads of one run did.
pub(crate) struct Run {
    pub(crate) grants_per_second: f64,
    /// The seconds of a thread for a pair, without its sleep between pairs.
    pub(crate) pair: f64,
    pub(crate) longest_wait: Duration,
}

impl Run {
    pub(crate) fn new(tallies: &[Tally], elapsed: Duration) -> Self {
        let grants: u32 = tallies.iter().map(|tally| tally.grants).sum();
        let longest_wait = tallies.iter().map(|tally| tally.longest_wait).max();
        let idle: f64 = tallies.iter().map(|tally| tally.idle.as_secs_f64()).sum();
        let threads = tallies.len() as f64;
        Self {
            grants_per_second: f64::from(grants) / elapsed.as_secs_f64(),
            pair: (elapsed.as_secs_f64() * threads - idle) / f64::from(grants),
            longest_wait: longest_wait.unwrap_or_default(),
        }
    }

    /// Returns the medians of some runs.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let rates = runs.iter().map(|run| run.grants_per_second);
        let mut waits: Vec<_> = runs.iter().map(|run| run.longest_wait).collect();
        waits.sort_unstable();
        Self {
            grants_per_second: median(rates.collect()),
            pair: median(runs.iter().map(|run| run.pair).collect()),
            longest_wait: waits.get(waits.len() / 2).copied().unwrap_or_default(),
        }
    }
}

/// Locks and releases a name in each of `threads` threads for `span`. The names begin with `prefix`.
pub(crate) fn run(
    keeper: &LockKeeper,
    prefix: &str,
    threads: usize,
    span: Duration,
) -> Result<Run, Box<dyn Error>> {
    let (tallies, elapsed) = together(threads, |number| {
        let name = LockName::new(format!("{prefix}:{number}"))?;
        let mut tally = Tally::new();
        while tally.began.elapsed() < span {
            let asked = Instant::now();
            let guard = keeper.lock(&name)?;
            tally.add(asked);
            guard.release()?;
        }
        Ok(tally)
    })?;
    Ok(Run::new(&tallies, elapsed))
}

/// Returns the pairs per second of a raw connection. A round has as many pairs as there are threads. `between` is
/// called twice for each round, since each pair has two requests.
fn floor(raw: &mut dyn Raw, between: &dyn Fn()) -> Done<f64> {
    let (began, mut pairs) = (Instant::now(), 0);
    while began.elapsed() < RUN {
        let end = pairs + THREADS;
        while pairs < end {
            pairs += raw.pairs()?;
        }
        between();
        between();
    }
    Ok(pairs as f64 / began.elapsed().as_secs_f64())
}

/// The rows of a store. The floor is what one raw connection can carry.
pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    rows_of(kind.name(), &store.open("")?, &mut *store.raw()?)
}

/// The rows of a Redis Cluster. The floor is that of one server beside it.
pub(crate) fn cluster(kind: Kind) -> Rows {
    let server = Store::start(kind)?;
    let cluster = RedisCluster::start(redis_kind()?, 0, NEVER)?;
    cluster.announce_servers()?;
    let url = cluster.server(0).url();
    let keeper = lockkeeper::open(&url.replacen("redis:", "redis+cluster:", 1))?;
    rows_of("cluster of 3 redis", &keeper, &mut *server.raw()?)
}

/// Measures runs of the keeper and of the floor alternately; a second floor wakes as many blocked threads as the keeper
/// has callers.
fn rows_of(store: &str, keeper: &LockKeeper, raw: &mut dyn Raw) -> Rows {
    run(keeper, "seat", THREADS, RUN)?;
    let (mut runs, mut floors, mut woken) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        floors.push(floor(raw, &|| ())?);
        woken.push(beside_blocked(THREADS, |wake_all| floor(raw, wake_all))?);
        runs.push(run(keeper, "seat", THREADS, RUN)?);
    }
    let typical = Run::median(&runs);
    let ours = typical.grants_per_second;
    // The ratio of two rates is that of the times, the other way round.
    let row = |what: String, floor: f64, budget| Row {
        value: floor / ours,
        ..Row::times(what, ours, floor, |it| format!("{it:.0}/s"), budget)
    };
    let threads = format!("{THREADS} threads, a name each, {store}");
    let with_wakes = format!("  floor with {THREADS} threads woken, {store}");
    Ok(vec![
        row(threads, median(floors), 2.0),
        row(with_wakes, median(woken), NONE),
        Row::plain(
            format!("  longest wait, {store}"),
            typical.longest_wait.as_secs_f64() * 1e3,
            1,
            " ms",
            20.0,
        ),
    ])
}
