//! Shared locks and permits, beside exclusive locks of the same store.

use std::error::Error;
use std::time::Instant;

use lockkeeper::{Capability, LockKeeper, LockName};
use lockkeeper_testkit::{MySqlKind, PostgresKind};

use crate::contended::{Count, HELD, measured_sleep, own_count, times};
use crate::free::{alternately, row};
use crate::passes::{micros, token_pass};
use crate::pinning::Pinned;
use crate::process::{Process, Role};
use crate::threads::together;
use crate::{Row, Rows, etcd, median, mysql, postgres, server};

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
type Pair<'a> = &'a dyn Fn() -> Result<(), lockkeeper::Error>;

/// A store that is measured.
struct Store<'a> {
    name: &'a str,
    url: &'a str,
    /// The process that is kept off this one's cores.
    server: Option<u32>,
    count: Count<'a>,
    /// Pairs of a round, so that a round is long enough to measure.
    pairs: u32,
}

impl Store<'_> {
    fn rows(&self) -> Rows {
        let keeper = lockkeeper::open(self.url)?;
        let seat = LockName::new("seat:42")?;
        let exclusive = || keeper.lock(&seat)?.release().map(drop);
        let mut rows = self.commands(&keeper, "exclusive", &exclusive)?;
        if self.can(&keeper, Capability::Shared) {
            let shared = || keeper.lock_shared(&seat)?.release().map(drop);
            rows.extend(self.pairs(&keeper, "shared", &exclusive, &shared, 1.1)?);
            rows.extend(self.readers(&keeper)?);
        }
        if self.can(&keeper, Capability::Permits) {
            let semaphore = keeper.semaphore(&seat, LIMIT)?;
            let permit = || semaphore.acquire()?.release().map(drop);
            rows.extend(self.pairs(&keeper, "permit", &exclusive, &permit, 1.1)?);
            if keeper.capabilities().has(Capability::CrossProcess) {
                rows.push(self.contended_permits()?);
            }
        }
        let several = || keeper.lock_all(SEATS)?.release().map(drop);
        rows.extend(self.pairs(&keeper, "3 names", &exclusive, &several, f64::INFINITY)?);
        Ok(rows)
    }

    /// Tells whether the store has the capability, and prints it if not.
    fn can(&self, keeper: &LockKeeper, needed: Capability) -> bool {
        let can = keeper.capabilities().has(needed);
        if !can {
            let what = format!("{needed} {}", self.name);
            println!("{what:<50} not measured: the store does not have this capability");
        }
        can
    }

    /// A pair of a shape on free names; the floor is the exclusive lock of that store.
    fn pairs(
        &self,
        keeper: &LockKeeper,
        shape: &str,
        exclusive: Pair<'_>,
        pair: Pair<'_>,
        budget: f64,
    ) -> Rows {
        let times = {
            let _pinned = Pinned::to_own_cores(self.server)?;
            alternately(self.pairs, || Ok(exclusive()?), || Ok(pair()?))?
        };
        let what = format!("{shape} pair to exclusive pair, {}", self.name);
        let mut rows = vec![row(&what, times, budget)];
        rows.extend(self.commands(keeper, shape, pair)?);
        Ok(rows)
    }

    /// What a pair costs the store, by the keeper's own count.
    fn commands(&self, keeper: &LockKeeper, shape: &str, pair: Pair<'_>) -> Rows {
        const PAIRS: u32 = 100;
        // The first one may open a connection.
        pair()?;
        let Some(before) = keeper.usage() else {
            return Ok(Vec::new());
        };
        (0..PAIRS).try_for_each(|_| pair())?;
        let after = keeper.usage().ok_or("no usage")?;
        let commands = (after.commands - before.commands) as f64 / f64::from(PAIRS);
        let what = |what| format!("  {what}, {shape}, {}", self.name);
        Ok(vec![
            Row::plain(what("commands of a pair"), commands, 2, "", f64::INFINITY),
            Row::plain(
                what("connections"),
                f64::from(after.connections),
                0,
                "",
                f64::INFINITY,
            ),
        ])
    }

    /// Threads that read one name together; the floor is a pass of a token. Each gives its processor away
    /// while it reads, or it would be done before another one comes, and release the lease that they share.
    fn readers(&self, keeper: &LockKeeper) -> Rows {
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
            Ok::<_, Box<dyn Error>>(elapsed.as_secs_f64() / (READERS * READS) as f64)
        };
        run()?;
        let (mut all, mut floors) = (Vec::new(), Vec::new());
        let before = (self.count)(keeper)?;
        for _ in 0..RUNS {
            floors.push(token_pass());
            all.push(run()?);
        }
        let after = (self.count)(keeper)?;
        let (measured, floor) = (median(all), median(floors));
        let mut rows = vec![Row {
            what: format!("{READERS} threads share a name, {}", self.name),
            measured: micros(measured),
            floor: micros(floor),
            value: measured / floor,
            budget: 1.5,
            unit: "x",
        }];
        if let Some((before, after)) = before.zip(after) {
            let grants = (READERS * READS * RUNS) as f64;
            let what = format!("  commands per shared lock, {}", self.name);
            rows.push(Row::plain(
                what,
                (after - before) as f64 / grants,
                3,
                "",
                0.1,
            ));
        }
        Ok(rows)
    }

    /// Threads of several processes on the permits of one semaphore, each for a millisecond.
    fn contended_permits(&self) -> Result<Row, Box<dyn Error>> {
        let mut all = Process::start_all(PROCESSES, Role::Permits, self.url)?;
        let (mut runs, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            floors.push(measured_sleep());
            let began = Instant::now();
            for process in &mut all {
                process.go()?;
            }
            for process in &mut all {
                process.line()?;
            }
            runs.push(began.elapsed().as_secs_f64());
        }
        let turns = (PROCESSES * THREADS * GRANTS) as f64 / f64::from(LIMIT);
        let what = format!(
            "{PROCESSES} processes x {THREADS} threads, {LIMIT} permits, 1 ms held, {}",
            self.name
        );
        Ok(times(what, median(runs), median(floors) * turns, 1.1))
    }
}

/// Has the threads of one of several processes acquire permits.
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

pub(crate) fn memory() -> Rows {
    Store {
        name: "memory",
        url: "memory:?wait=60s",
        server: None,
        count: &|_| Ok(None),
        pairs: 20_000,
    }
    .rows()
}

pub(crate) fn sqlite() -> Rows {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    Store {
        name: "sqlite",
        url: &format!("sqlite:{}?wait=60s", path.display()),
        server: None,
        count: &own_count,
        pairs: 500,
    }
    .rows()
}

pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    Store {
        name: "redis",
        url: &format!("{}?wait=60s", server.url()),
        server: server.pid(),
        count: &|_| Ok(Some(server::sent(&server)?)),
        pairs: 100,
    }
    .rows()
}

pub(crate) fn on_mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    let questions = mysql::Questions::of(&server)?;
    Store {
        name: kind.name(),
        url: &format!("{}?wait=60s", server.url()),
        server: server.pid(),
        count: &|_| Ok(Some(questions.sent()?)),
        pairs: 100,
    }
    .rows()
}

pub(crate) fn on_postgres(kind: PostgresKind) -> Rows {
    let server = postgres::start(kind)?;
    Store {
        name: kind.name(),
        url: &format!("{}?wait=60s", server.url()),
        server: server.pid(),
        count: &own_count,
        pairs: 100,
    }
    .rows()
}

pub(crate) fn on_etcd() -> Rows {
    let server = etcd::start()?;
    Store {
        name: "etcd",
        url: &format!("{}?wait=60s", server.url()),
        server: server.pid(),
        count: &own_count,
        pairs: 20,
    }
    .rows()
}
