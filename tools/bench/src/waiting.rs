//! The cost of waiting.

use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, CancelToken};
use lockkeeper_testkit::{MySqlKind, PostgresKind};
use rustix::time::{ClockId, clock_gettime};

use crate::{Row, Rows, etcd, mysql, postgres, server};

/// Returns the processor time of this process so far, in milliseconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

pub(crate) fn rows() -> Rows {
    let folder = tempfile::tempdir()?;
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut rows = rows_on("memory:bench", "memory", 1.0)?;
    rows.extend(rows_on(&sqlite, "sqlite", 1.0)?);
    Ok(rows)
}

pub(crate) fn rows_redis() -> Rows {
    let server = server::start()?;
    // One connection for commands, and one for notifications.
    rows_on(&server.url(), "redis", 2.0)
}

pub(crate) fn rows_mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    rows_on(&server.url(), kind.name(), 1.0)
}

pub(crate) fn rows_postgres(kind: PostgresKind) -> Rows {
    let server = postgres::start(kind)?;
    rows_on(&server.url(), kind.name(), 1.0)
}

pub(crate) fn rows_etcd() -> Rows {
    let server = etcd::start()?;
    // One connection for requests, and one that watches.
    rows_on(&server.url(), "etcd", 2.0)
}

fn rows_on(url: &str, store: &str, connections: f64) -> Rows {
    let mut rows = Vec::new();
    // Another keeper holds the lock, so that the head of the queue waits in the store.
    let holder = lockkeeper::open(url)?;
    let keeper = lockkeeper::open(url)?;
    let guard = holder.lock("seat:42")?;
    let cancel = CancelToken::new();
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let (keeper, cancel) = (keeper.clone(), cancel.clone());
            thread::spawn(move || {
                let options = AcquireOptions::new().wait_forever().cancel(&cancel);
                keeper.acquire("seat:42", &options).map(drop)
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    let before = cpu();
    thread::sleep(Duration::from_secs(10));
    let spent = cpu() - before;
    let what = format!("CPU of 100 waiting threads in 10 s, {store}");
    rows.push(Row::plain(what, spent, 1, " ms", 20.0));
    if let Some(usage) = keeper.usage() {
        let what = format!("  connections of 100 waiting threads, {store}");
        let value = f64::from(usage.connections);
        rows.push(Row::plain(what, value, 0, "", connections));
    }
    cancel.cancel();
    for waiter in waiters {
        // Each returns the error of the cancellation.
        let _ = waiter.join();
    }
    drop(guard);
    Ok(rows)
}
