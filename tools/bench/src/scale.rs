//! How the rates grow with the number of threads and processes, each with names of its own, and what is left
//! of a million names that were used once.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, PostgresKind, PostgresOptions};

use crate::once::{self, Left, Unit};
use crate::process::{Process, Role};
use crate::{Row, Rows, etcd, many, median, memory::resident, mysql, postgres, server};

const THREADS: [usize; 4] = [1, 8, 64, 256];
const PROCESSES: [usize; 3] = [1, 4, 16];
/// The threads of each process, with a name each.
const THREADS_OF_PROCESS: usize = 4;
const RUNS: usize = 3;
const RUN: Duration = Duration::from_millis(400);

/// Makes a row for each size but the first one, with the rate of the size before as its floor.
fn growth<const N: usize>(
    sizes: [usize; N],
    what: &str,
    mut rate: impl FnMut(usize) -> Result<f64, Box<dyn Error>>,
) -> Rows {
    let mut rows = Vec::new();
    let mut smaller = None;
    for size in sizes {
        let rates = (0..RUNS).map(|_| rate(size)).collect::<Result<_, _>>()?;
        let rate = median(rates);
        if let Some(smaller) = smaller.replace(rate) {
            rows.push(Row::growth(format!("{size} {what}"), rate, smaller, "/s"));
        }
    }
    Ok(rows)
}

fn threads(keeper: &LockKeeper, store: &str) -> Rows {
    many::run(keeper, "seat", 64, RUN)?;
    growth(
        THREADS,
        &format!("threads, a name each, {store}"),
        |threads| Ok(many::run(keeper, "seat", threads, RUN)?.grants_per_second),
    )
}

fn processes(url: &str, store: &str) -> Rows {
    let what = format!("processes x {THREADS_OF_PROCESS} threads, a name each, {store}");
    growth(PROCESSES, &what, |count| {
        let mut all = Process::start_all(count, Role::Names, url)?;
        for process in &mut all {
            process.go()?;
        }
        let mut together = 0.0;
        for process in &mut all {
            together += process.line()?.parse::<f64>()?;
        }
        Ok(together)
    })
}

/// Has the threads of one of several processes lock names of their own, and returns the grants a second.
pub(crate) fn lock_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    let prefix = format!("seat:{}", std::process::id());
    let run = many::run(keeper, &prefix, THREADS_OF_PROCESS, RUN)?;
    Ok(run.grants_per_second.to_string())
}

pub(crate) fn memory() -> Rows {
    let keeper = lockkeeper::open("memory:")?;
    let mut rows = threads(&keeper, "memory")?;
    rows.extend(once::rows("memory:", "memory", &|| Ok(Vec::new()))?);
    Ok(rows)
}

pub(crate) fn sqlite() -> Rows {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}?wait=60s", path.display());
    let keeper = lockkeeper::open(&url)?;
    let mut rows = threads(&keeper, "sqlite")?;
    rows.extend(processes(&url, "sqlite")?);
    let log = folder.path().join("locks.db-wal");
    let size = |what, path: &Path| -> Result<Left, Box<dyn Error>> {
        Ok(Left {
            what,
            amount: fs::metadata(path)?.len() as f64,
            unit: Unit::Bytes,
        })
    };
    rows.extend(once::rows(&url, "sqlite", &|| {
        Ok(vec![size("file", &path)?, size("log (-wal)", &log)?])
    })?);
    Ok(rows)
}

pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    let url = format!("{}?wait=60s", server.url());
    let keeper = lockkeeper::open(&url)?;
    let mut rows = threads(&keeper, "redis")?;
    rows.extend(processes(&url, "redis")?);
    rows.extend(once::rows(&url, "redis", &|| {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server::raw(&server)?)?;
        Ok(vec![
            Left {
                what: "used_memory of the server",
                amount: server::used_memory(&server)?,
                unit: Unit::Bytes,
            },
            Left {
                what: "keys",
                amount: keys as f64,
                unit: Unit::Entries,
            },
        ])
    })?);
    Ok(rows)
}

pub(crate) fn on_mysql(kind: MySqlKind) -> Rows {
    // Each process has a pool of its own.
    let options = MySqlOptions::new()
        .show_locks()
        .config("max-connections", "400");
    let server = mysql::start_with(kind, &options)?;
    let (url, store) = (format!("{}?wait=60s", server.url()), kind.name());
    let keeper = lockkeeper::open(&url)?;
    let mut rows = threads(&keeper, store)?;
    rows.extend(processes(&url, store)?);
    // Few connections, so that the warm-up fills the read buffers of all.
    let once = format!("{url}&pool_size=2");
    rows.extend(once::rows(&once, store, &|| {
        let mut left = vec![Left {
            what: "named locks in the server",
            amount: server.held()?.len() as f64,
            unit: Unit::Entries,
        }];
        left.extend(resident(server.pid()).map(|amount| Left {
            what: "memory of the server (RSS)",
            amount,
            unit: Unit::Bytes,
        }));
        Ok(left)
    })?);
    Ok(rows)
}

pub(crate) fn on_postgres(kind: PostgresKind) -> Rows {
    // Each process has a pool of its own.
    let options = PostgresOptions::new().config("max_connections", "400");
    let server = postgres::start_with(kind, options)?;
    let (url, store) = (format!("{}?wait=60s", server.url()), kind.name());
    let keeper = lockkeeper::open(&url)?;
    let mut rows = threads(&keeper, store)?;
    rows.extend(processes(&url, store)?);
    // A session has shared locks as long as it lives; they tell it from other sessions.
    let count =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
    rows.extend(once::rows(&url, store, &|| {
        Ok(vec![Left {
            what: "advisory locks in the server",
            amount: server.value(count)?.parse()?,
            unit: Unit::Entries,
        }])
    })?);
    Ok(rows)
}

pub(crate) fn on_etcd() -> Rows {
    let server = etcd::start()?;
    let url = format!("{}?wait=60s", server.url());
    let keeper = lockkeeper::open(&url)?;
    let mut rows = threads(&keeper, "etcd")?;
    rows.extend(processes(&url, "etcd")?);
    // Revisions of keys stay until the operator's compaction, as those of every etcd client do.
    rows.extend(once::rows(&url, "etcd", &|| {
        Ok(vec![Left {
            what: "keys",
            amount: server.keys("lockkeeper/")?.len() as f64,
            unit: Unit::Entries,
        }])
    })?);
    Ok(rows)
}
