//! How the rates grow with the number of threads and processes, each with names of its own. Also measures
//! the memory after a million names were used once.

use std::error::Error;
use std::fs;
use std::time::Duration;

use lockkeeper::LockKeeper;

use crate::many;
use crate::memory::resident;
use crate::once::{self, Left, Unit};
use crate::process::{Process, Role};
use crate::raw::Done;
use crate::row::{Row, Rows, median};
use crate::store::{Kind, Server, Store, memory_of_redis};

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
    let what = format!("threads, a name each, {store}");
    growth(THREADS, &what, |threads| {
        Ok(many::run(keeper, "seat", threads, RUN)?.grants_per_second)
    })
}

fn processes(url: &str, store: &str) -> Rows {
    let what = format!("processes x {THREADS_OF_PROCESS} threads, a name each, {store}");
    growth(PROCESSES, &what, |count| {
        let mut all = Process::start_all(count, Role::Names, url)?;
        let mut together = 0.0;
        for rate in Process::work(&mut all)? {
            together += rate.parse::<f64>()?;
        }
        Ok(together)
    })
}

/// Locks names of their own in the threads of one of several processes, and returns the grants a second.
pub(crate) fn lock_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    let prefix = format!("seat:{}", std::process::id());
    let run = many::run(keeper, &prefix, THREADS_OF_PROCESS, RUN)?;
    Ok(run.grants_per_second.to_string())
}

pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start_to_list(kind)?;
    let mut rows = threads(&store.open("wait=60s")?, kind.name())?;
    if kind != Kind::Memory {
        rows.extend(processes(&store.url("wait=60s"), kind.name())?);
    }
    let url = match kind {
        // Few connections, so that the warm-up fills the read buffers of all.
        Kind::MariaDb | Kind::MySql => store.url("wait=60s&pool_size=2"),
        _ => store.url("wait=60s"),
    };
    rows.extend(once::rows(&url, kind.name(), &|| left(&store))?);
    Ok(rows)
}

/// Returns what the store has now.
fn left(store: &Store) -> Done<Vec<Left>> {
    let bytes = |what, amount| Left {
        what,
        amount,
        unit: Unit::Bytes,
    };
    let entries = |what, count: i64| Left {
        what,
        amount: count as f64,
        unit: Unit::Entries,
    };
    Ok(match &store.server {
        Server::Memory => Vec::new(),
        Server::Sqlite(folder, _) => {
            let size =
                |file| Ok::<_, std::io::Error>(fs::metadata(folder.path().join(file))?.len());
            vec![
                bytes("file", size("locks.db")? as f64),
                bytes("log (-wal)", size("locks.db-wal")? as f64),
            ]
        }
        Server::Redis(server) => vec![
            bytes("used_memory of the server", memory_of_redis(server)?),
            entries(
                "keys",
                server.command(&["DBSIZE"])?.int().ok_or("no number")?,
            ),
        ],
        Server::MySql(server, _) => {
            let mut left = vec![entries(
                "named locks in the server",
                server.held()?.len() as i64,
            )];
            let memory = resident(server.pid());
            left.extend(memory.map(|amount| bytes("memory of the server (RSS)", amount)));
            left
        }
        Server::Postgres(server) => {
            // A session has shared locks as long as it lives; they tell it from other sessions.
            let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
            let held = server.value(count)?.parse()?;
            vec![entries("advisory locks in the server", held)]
        }
        // Revisions of keys stay until the operator's compaction, as those of every etcd client do.
        Server::Etcd(server) => vec![entries("keys", server.keys("lockkeeper/")?.len() as i64)],
        Server::Consul(server) => {
            vec![entries("keys", server.keys("lockkeeper/")?.len() as i64)]
        }
        Server::ZooKeeper(server) => {
            let nodes = server.client()?.children("/lockkeeper/default/entries")?;
            vec![entries("nodes", nodes.len() as i64)]
        }
    })
}
