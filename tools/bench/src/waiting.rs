//! The cost of waiting.

use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, CancelToken};
use rustix::time::{ClockId, clock_gettime};

use crate::row::{Row, Rows};
use crate::store::{Kind, Store};

/// Returns the processor time of this process so far, in milliseconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

pub(crate) fn rows(kind: Kind) -> Rows {
    let connections = match kind {
        // One for requests, and one for notifications.
        Kind::Redis | Kind::Etcd | Kind::Consul => 2.0,
        // One for requests, one for the session of the leases, and one for that of the places in the queue.
        Kind::ZooKeeper => 3.0,
        _ => 1.0,
    };
    let (store, name) = (Store::start(kind)?, kind.name());
    let mut rows = Vec::new();
    // Another keeper holds the lock, so that the head of the queue waits in the store.
    let (holder, keeper) = (store.open("")?, store.open("")?);
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
    let what = format!("CPU of 100 waiting threads in 10 s, {name}");
    rows.push(Row::plain(what, spent, 1, " ms", 20.0));
    if let Some(usage) = keeper.usage() {
        let what = format!("  connections of 100 waiting threads, {name}");
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
