//! Shared locks and permits, beside exclusive locks of the same store.

use std::error::Error;
use std::time::Instant;

use lockkeeper::{Capability, LockKeeper, LockName};
use lockkeeper_testkit::MySqlKind;

use crate::contended::{Count, HELD, measured_sleep, times};
use crate::free::{alternately, pair, row};
use crate::passes::{micros, token_pass};
use crate::pinning::Pinned;
use crate::process::{Process, Role};
use crate::server::Missing;
use crate::threads::together;
use crate::{Row, Rows, median, mysql, server};

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
        for needed in [Capability::Shared, Capability::Permits] {
            if !keeper.capabilities().has(needed) {
                let why = format!("{} does not have the capability {needed}", self.name);
                return Err(Missing::new(why).into());
            }
        }
        let mut rows = self.free(&keeper)?;
        rows.extend(self.commands()?);
        rows.extend(self.readers(&keeper)?);
        if keeper.capabilities().has(Capability::CrossProcess) {
            rows.push(self.permits()?);
        }
        Ok(rows)
    }

    /// A shared lock and a permit of a free name, and the locks of three; the floor is the exclusive lock of
    /// that store.
    fn free(&self, keeper: &LockKeeper) -> Rows {
        let _pinned = Pinned::to_own_cores(self.server)?;
        let name = LockName::new("seat:42")?;
        let semaphore = keeper.semaphore(&name, LIMIT)?;
        let shared = alternately(
            self.pairs,
            || pair(keeper, &name),
            || Ok(keeper.lock_shared(&name)?.release().map(drop)?),
        )?;
        let permit = alternately(
            self.pairs,
            || pair(keeper, &name),
            || Ok(semaphore.acquire()?.release().map(drop)?),
        )?;
        let several = alternately(
            self.pairs,
            || pair(keeper, &name),
            || Ok(keeper.lock_all(SEATS)?.release().map(drop)?),
        )?;
        let what = |shape| format!("{shape} pair to exclusive pair, {}", self.name);
        Ok(vec![
            row(&what("shared"), shared, 1.1),
            row(&what("permit"), permit, 1.1),
            row(&what("3 names"), several, f64::INFINITY),
        ])
    }

    /// What a pair of each shape costs the store, by the keeper's own count.
    fn commands(&self) -> Rows {
        const PAIRS: u32 = 100;
        let keeper = lockkeeper::open(self.url)?;
        let semaphore = keeper.semaphore("reports", LIMIT)?;
        let pairs: [(&str, Pair<'_>); 4] = [
            ("exclusive", &|| keeper.lock("seat:42")?.release().map(drop)),
            ("shared", &|| {
                keeper.lock_shared("seat:42")?.release().map(drop)
            }),
            ("permit", &|| semaphore.acquire()?.release().map(drop)),
            ("3 names", &|| keeper.lock_all(SEATS)?.release().map(drop)),
        ];
        let mut rows = Vec::new();
        for (shape, pair) in pairs {
            // The first one may open a connection.
            pair()?;
            let Some(before) = keeper.usage() else {
                return Ok(rows);
            };
            (0..PAIRS).try_for_each(|_| pair())?;
            let after = keeper.usage().ok_or("no usage")?;
            let commands = (after.commands - before.commands) as f64 / f64::from(PAIRS);
            let what = format!("  commands of a pair, {shape}, {}", self.name);
            rows.push(Row::plain(what, commands, 2, "", f64::INFINITY));
            let what = format!("  connections, {shape}, {}", self.name);
            let connections = f64::from(after.connections);
            rows.push(Row::plain(what, connections, 0, "", f64::INFINITY));
        }
        Ok(rows)
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
    fn permits(&self) -> Result<Row, Box<dyn Error>> {
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
        count: &|keeper| Ok(keeper.usage().map(|usage| usage.commands)),
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
