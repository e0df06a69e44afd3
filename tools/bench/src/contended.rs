//! Many threads that lock one name, each for a millisecond.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::LockKeeper;
use lockkeeper::clock::{Clock as _, SystemClock};

use crate::pinning::Pinned;
use crate::process::{Process, Role};
use crate::raw::Done;
use crate::row::{Row, Rows, medians, millis};
use crate::store::{Kind, Store};
use crate::threads::together;

pub(crate) const HELD: Duration = Duration::from_millis(1);
const RUNS: usize = 5;
/// Long enough for a waiter to be queued.
const PAUSE: Duration = Duration::from_millis(3);

/// Returns how long a sleep of a millisecond takes on an idle processor: the floor.
pub(crate) fn measured_sleep() -> f64 {
    let began = Instant::now();
    for _ in 0..500 {
        thread::sleep(HELD);
    }
    began.elapsed().as_secs_f64() / 500.0
}

/// Locks the name `grants` times in `threads` threads together, and returns the longest wait.
fn lock_in_threads(
    keeper: &LockKeeper,
    threads: usize,
    grants: usize,
) -> Result<Duration, Box<dyn Error>> {
    let (longest, _) = together(threads, |_| {
        let mut longest = Duration::ZERO;
        for _ in 0..grants / threads {
            let began = Instant::now();
            let guard = keeper.lock("seat:42")?;
            longest = longest.max(began.elapsed());
            thread::sleep(HELD);
            guard.release()?;
        }
        Ok(longest)
    })?;
    Ok(longest.into_iter().max().unwrap_or_default())
}

pub(crate) fn threads(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let keeper = store.open("wait=60s")?;
    lock_in_threads(&keeper, 100, 100)?;
    let before = store.sent(&keeper)?;
    // The median of a few runs, since a shared machine stalls for a second now and then.
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let floor = measured_sleep() * 1e3;
        let began = Instant::now();
        lock_in_threads(&keeper, 100, 1_000)?;
        let seconds = began.elapsed().as_secs_f64();
        let floor = f64::midpoint(floor, measured_sleep() * 1e3);
        runs.push((seconds, floor));
    }
    let after = store.sent(&keeper)?;
    runs.sort_by(|(a, of_a), (b, of_b)| (a / of_a).total_cmp(&(b / of_b)));
    let (seconds, floor) = runs.get(RUNS / 2).copied().ok_or("no run")?;
    let what = format!("100 threads x 10, 1 ms held, {}", store.name());
    let mut rows = vec![Row::times(what, seconds, floor, millis, 1.05)];
    if let Some((before, after)) = before.zip(after) {
        let commands = (after - before) as f64 / (1e3 * RUNS as f64);
        let what = format!("  {} per grant, {}", kind.request(), store.name());
        rows.push(Row::plain(what, commands, 3, "", 0.1));
    }
    Ok(rows)
}

pub(crate) fn processes(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let mut all = Process::start_all(4, Role::Threads, &store.url("wait=60s"))?;
    let floor = measured_sleep() * 1e3;
    let began = Instant::now();
    let mut longest: f64 = 0.0;
    for wait in Process::work(&mut all)? {
        longest = longest.max(wait.parse()?);
    }
    let seconds = began.elapsed().as_secs_f64();
    let floor = f64::midpoint(floor, measured_sleep() * 1e3);
    drop(all);
    let (middle, round) = handovers(&store)?;
    let name = store.name();
    let what = format!("4 processes x 25 threads, 1 ms held, {name}");
    let to_another = format!("release here to grant in another process, {name}");
    Ok(vec![
        Row::times(what, seconds, floor, millis, 1.05),
        Row::plain("  longest wait", longest, 0, " ms", 300.0),
        match kind {
            // There are no round trips.
            Kind::Sqlite => Row::plain(to_another, middle, 3, " ms", 2.0),
            _ => Row::times(to_another, middle, round, |it| format!("{it:.3} ms"), 2.5),
        },
    ])
}

/// Returns the time from just before a release here to the grant in the other process, and the time of a
/// round trip. Both are in milliseconds, and measured alternately, after the same pause. The processes
/// share the clock.
fn handovers(store: &Store) -> Done<(f64, f64)> {
    let mut raw = store.raw()?;
    let _pinned = Pinned::to_own_cores(store.pid())?;
    let keeper = store.open("wait=60s")?;
    let mut other = Process::start(Role::Handovers, &store.url("wait=60s"))?;
    let round_trip = || {
        thread::sleep(PAUSE);
        let began = Instant::now();
        raw.round_trip()?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let handover = || {
        let guard = keeper.lock("seat:42")?;
        other.go()?;
        // The other process reports just before it acquires; give it the time to be queued.
        other.line()?;
        thread::sleep(PAUSE);
        let released = SystemClock.now().as_nanos();
        guard.release()?;
        let granted: u64 = other.line()?.parse()?;
        Ok(granted.saturating_sub(released) as f64 / 1e6)
    };
    medians(200, round_trip, handover)
}

/// Locks the name in the threads of one of several processes, and returns the longest wait in milliseconds.
pub(crate) fn lock_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    let longest = lock_in_threads(keeper, 25, 250)?;
    Ok((longest.as_secs_f64() * 1e3).to_string())
}

/// Locks the name that the parent holds, and returns the time of the grant in nanoseconds.
pub(crate) fn take_over_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    println!("waiting");
    let guard = keeper.lock("seat:42")?;
    let granted = SystemClock.now().as_nanos();
    guard.release()?;
    Ok(granted.to_string())
}
