//! Many threads, each with a free name of its own.

mod floors;

use std::error::Error;
use std::time::{Duration, Instant};

use lockkeeper::{LockKeeper, LockName};

use crate::threads::together;
use crate::wakes::beside_blocked;
use crate::{Row, Rows, median};

pub(crate) use floors::{cluster, etcd, mysql, postgres, redis, sqlite};

const THREADS: usize = 64;
const RUNS: usize = 5;
const RUN: Duration = Duration::from_millis(400);

/// What one thread did.
pub(crate) struct Tally {
    pub(crate) began: Instant,
    pub(crate) grants: u32,
    longest_wait: Duration,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            grants: 0,
            longest_wait: Duration::ZERO,
        }
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
    pub(crate) longest_wait: Duration,
}

impl Run {
    pub(crate) fn new(tallies: &[Tally], elapsed: Duration) -> Self {
        let grants: u32 = tallies.iter().map(|tally| tally.grants).sum();
        let longest_wait = tallies.iter().map(|tally| tally.longest_wait).max();
        Self {
            grants_per_second: f64::from(grants) / elapsed.as_secs_f64(),
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
            longest_wait: waits.get(waits.len() / 2).copied().unwrap_or_default(),
        }
    }
}

/// Has `threads` threads lock and release a name each, which begins with `prefix`, for `span`.
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

/// Returns the pairs per second of `floor` while as many threads block as the keeper has callers, and all are
/// woken for each of the two requests of a pair.
fn floor_with_wakes(
    floor: &mut impl FnMut() -> Result<usize, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    beside_blocked(THREADS, |wake_all| {
        let (began, mut pairs) = (Instant::now(), 0);
        while began.elapsed() < RUN {
            let mut round = 0;
            while round < THREADS {
                round += floor()?;
            }
            wake_all();
            wake_all();
            pairs += round;
        }
        Ok(pairs as f64 / began.elapsed().as_secs_f64())
    })
}

/// Measures runs of the keeper and of the floor alternately. `floor` makes one round of pairs, and returns
/// how many these are.
fn rows(
    store: &str,
    keeper: &LockKeeper,
    mut floor: impl FnMut() -> Result<usize, Box<dyn Error>>,
) -> Rows {
    run(keeper, "seat", THREADS, RUN)?;
    let (mut runs, mut floors, mut woken) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (began, mut pairs) = (Instant::now(), 0);
        while began.elapsed() < RUN {
            pairs += floor()?;
        }
        floors.push(pairs as f64 / began.elapsed().as_secs_f64());
        woken.push(floor_with_wakes(&mut floor)?);
        runs.push(run(keeper, "seat", THREADS, RUN)?);
    }
    let (typical, floor, woken) = (Run::median(&runs), median(floors), median(woken));
    let ours = typical.grants_per_second;
    Ok(vec![
        Row {
            what: format!("{THREADS} threads, a name each, {store}"),
            measured: format!("{ours:.0}/s"),
            floor: format!("{floor:.0}/s"),
            value: floor / ours,
            budget: 2.0,
            unit: "x",
        },
        Row {
            what: format!("  floor with {THREADS} threads woken, {store}"),
            measured: format!("{ours:.0}/s"),
            floor: format!("{woken:.0}/s"),
            value: woken / ours,
            budget: f64::INFINITY,
            unit: "x",
        },
        Row::plain(
            format!("  longest wait, {store}"),
            typical.longest_wait.as_secs_f64() * 1e3,
            1,
            " ms",
            20.0,
        ),
    ])
}
