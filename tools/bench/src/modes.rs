//! Shared locks and permits, beside exclusive locks of the same store.

use std::error::Error;
use std::time::Instant;

use lockkeeper::{Capability, LockKeeper, LockName};

use crate::contended::{HELD, measured_sleep};
use crate::free::{alternately, row};
use crate::passes::token_pass;
use crate::pinning::Pinned;
use crate::process::{Process, Role};
use crate::row::{NONE, Row, Rows, medians, micros, millis};
use crate::store::{Kind, Store};
use crate::threads::together;

/// Threads that read one name.
const READERS: usize = 64;
const READS: usize = 200;
const RUNS: usize = 7;
/// Names that are locked together.
const SEATS: [&str; 3] = ["seat:1", "seat:2", "seat:3"];
/// Permits of the semaphores.
const LIMIT: u32 = 5;
/// Processes that acquire them, threads of each, and permits of each thread.
const PROCESSES: usize = 4;
const THREADS: usize = 25;
const GRANTS: usize = 10;

/// Acquires and releases.
pub(crate) type Pair<'a> = &'a dyn Fn() -> Result<(), lockkeeper::Error>;

/// Measures all modes that a store has.
pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let keeper = store.open("wait=60s")?;
    let seat = LockName::new("seat:42")?;
    let has = |needed: Capability| {
        let has = keeper.capabilities().has(needed);
        if !has {
            let what = format!("{needed} {}", store.name());
            println!("{what:<50} not measured: the store does not have this capability");
        }
        has
    };
    let exclusive = || keeper.lock(&seat)?.release().map(drop);
    let beside = |shape: &str, pair: Pair<'_>, budget| {
        let mut rows = vec![beside_exclusive(&store, shape, &exclusive, pair, budget)?];
        rows.extend(cost(&store, &keeper, shape, pair)?);
        Ok::<_, Box<dyn Error>>(rows)
    };
    let mut rows = cost(&store, &keeper, "exclusive", &exclusive)?;
    if has(Capability::Shared) {
        let shared = || keeper.lock_shared(&seat)?.release().map(drop);
        rows.extend(beside("shared", &shared, 1.1)?);
        rows.extend(readers(&store, &keeper)?);
    }
    if has(Capability::Permits) {
        let semaphore = keeper.semaphore(&seat, LIMIT)?;
        let permit = || semaphore.acquire()?.release().map(drop);
        rows.extend(beside("permit", &permit, 1.1)?);
        if keeper.capabilities().has(Capability::CrossProcess) {
            rows.push(contended_permits(&store)?);
        }
    }
    let several = || keeper.lock_all(SEATS)?.release().map(drop);
    rows.extend(beside("3 names", &several, NONE)?);
    Ok(rows)
}

/// Measures a pair of a shape on free names; the floor is the exclusive lock of that store.
fn beside_exclusive(
    store: &Store,
    shape: &str,
    exclusive: Pair<'_>,
    pair: Pair<'_>,
    budget: f64,
) -> Result<Row, Box<dyn Error>> {
    let _pinned = Pinned::to_own_cores(store.pid())?;
    let pairs = alternately(store.kind.pairs(), || Ok(exclusive()?), || Ok(pair()?))?;
    let what = format!("{shape} pair to exclusive pair, {}", store.name());
    Ok(row(what, pairs, budget))
}

/// Counts what a pair costs the store, by the keeper's own count.
pub(crate) fn cost(store: &Store, keeper: &LockKeeper, shape: &str, pair: Pair<'_>) -> Rows {
    const PAIRS: u32 = 100;
    // The first one may open a connection.
    pair()?;
    let Some(before) = keeper.usage() else {
        return Ok(Vec::new());
    };
    (0..PAIRS).try_for_each(|_| pair())?;
    let after = keeper.usage().ok_or("no usage")?;
    let commands = (after.commands - before.commands) as f64 / f64::from(PAIRS);
    let connections = f64::from(after.connections);
    let what = |what| format!("  {what}, {shape}, {}", store.name());
    Ok(vec![
        Row::plain(what("commands of a pair"), commands, 2, "", NONE),
        Row::plain(what("connections"), connections, 0, "", NONE),
    ])
}

/// Measures threads that read one name together; the floor is a pass of a token. Each gives its processor away
/// while it reads, or it would be done before another one comes, and release the lease that they share.
fn readers(store: &Store, keeper: &LockKeeper) -> Rows {
    let name = LockName::new("catalog")?;
    let run = || {
        let (_, elapsed) = together(READERS, |_| {
            for _ in 0..READS {
                let reading = keeper.lock_shared(&name)?;
                std::thread::yield_now();
                reading.release()?;
            }
            Ok(())
        })?;
        Ok(elapsed.as_secs_f64() / (READERS * READS) as f64)
    };
    run()?;
    let before = store.sent(keeper)?;
    let (ours, floor) = medians(RUNS, || Ok(token_pass()), run)?;
    let after = store.sent(keeper)?;
    let what = format!("{READERS} threads share a name, {}", store.name());
    let mut rows = vec![Row::times(what, ours, floor, micros, 1.5)];
    if let Some((before, after)) = before.zip(after) {
        let commands = (after - before) as f64 / (READERS * READS * RUNS) as f64;
        let what = format!("  commands per shared lock, {}", store.name());
        rows.push(Row::plain(what, commands, 3, "", 0.1));
    }
    Ok(rows)
}

/// Measures threads of several processes on the permits of one semaphore, each for a millisecond.
fn contended_permits(store: &Store) -> Result<Row, Box<dyn Error>> {
    let mut all = Process::start_all(PROCESSES, Role::Permits, &store.url("wait=60s"))?;
    let run = || {
        let began = Instant::now();
        Process::work(&mut all)?;
        Ok(began.elapsed().as_secs_f64())
    };
    let (ours, sleep) = medians(RUNS, || Ok(measured_sleep()), run)?;
    let turns = (PROCESSES * THREADS * GRANTS) as f64 / f64::from(LIMIT);
    let what = format!(
        "{PROCESSES} processes x {THREADS} threads, {LIMIT} permits, 1 ms held, {}",
        store.name()
    );
    Ok(Row::times(what, ours, sleep * turns, millis, 1.1))
}

/// Acquires permits in the threads of one of several processes.
pub(crate) fn hold_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    let semaphore = keeper.semaphore("reports", LIMIT)?;
    together(THREADS, |_| {
        for _ in 0..GRANTS {
            let permit = semaphore.acquire()?;
            std::thread::sleep(HELD);
            permit.release()?;
        }
        Ok(())
    })?;
    Ok("done".to_owned())
}
