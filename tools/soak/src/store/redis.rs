//! A Redis server, and a proxy before it.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper_testkit::{RedisOptions, RedisServer};

use super::{REDIS, ServerSettings, Store, StoreFault};
use crate::faults::Lane;

/// Where the server keeps its data, in its folder.
const DATA: &str = "appendonlydir";

/// Starts a server that has its data after a restart: each change is written before its reply is sent.
pub(super) fn start_server(options: RedisOptions) -> io::Result<Arc<RedisServer>> {
    let options = options
        .config("appendonly", ["yes"])
        .config("appendfsync", ["no"])
        .config("appenddirname", [DATA]);
    RedisServer::start(REDIS, &options).map(Arc::new)
}

/// Removes the data of a server that was killed.
pub(super) fn remove_data(server: &RedisServer) -> io::Result<()> {
    fs::remove_dir_all(server.folder().join(DATA))
}

pub(super) fn start(settings: &ServerSettings) -> io::Result<Store> {
    let mut options = RedisOptions::new();
    // After a step of the clock, the age of a server is wrong, by which `restart_grace` goes.
    let has_clock = settings.restart_grace.is_none() && REDIS.clock_ignored().is_none();
    if has_clock {
        options = options.settable_clock();
    }
    let server = start_server(options)?;
    let [restarted, connected, clock] = [(); 3].map(|()| Arc::clone(&server));
    let mut faults = vec![
        StoreFault::stopped("server stopped", &server),
        StoreFault::new("server restarted with its data", move |lane| {
            restarted.kill();
            lane.spell();
            restarted.restart()
        }),
        StoreFault::restarted("server restarted empty", &server, settings, remove_data),
        StoreFault::wiped("all keys flushed", &server),
        StoreFault::new("all connections killed", move |_| {
            let mut client = connected.client()?;
            for of in ["pubsub", "normal"] {
                client.command(&["CLIENT", "KILL", "TYPE", of])?;
            }
            Ok(())
        }),
    ];
    if has_clock {
        let forward = Arc::new(Clock {
            server: clock,
            ahead: AtomicI64::new(0),
        });
        let back = Arc::clone(&forward);
        faults.extend([
            StoreFault::new("clock set forward", move |lane| {
                forward.set_forward(step(lane), lane)
            }),
            StoreFault::new("clock set back for a while", move |lane| {
                back.set_back(lane)
            }),
        ]);
    }
    Ok(Store {
        faults,
        ..Store::behind_proxy(server, settings)?
    })
}

/// The clock of a server.
struct Clock {
    server: Arc<RedisServer>,
    /// By how many milliseconds it is ahead.
    ahead: AtomicI64,
}

/// Returns by how many milliseconds a clock is set: by less than a ttl, and by more.
fn step(lane: &mut Lane<'_>) -> i64 {
    let step = lane.millis(1..10_000).as_millis();
    i64::try_from(step).unwrap_or_default()
}

impl Clock {
    /// Sets the server's clock forward, which ends leases before their holders' time.
    fn set_forward(&self, by: i64, lane: &Lane<'_>) -> io::Result<()> {
        let ahead = self.ahead.fetch_add(by, Ordering::Relaxed) + by;
        lane.journal.forget(|| self.server.set_clock(ahead))
    }

    /// Sets the server's clock back for a while. Meanwhile, it does not end the leases of dead workers.
    fn set_back(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let by = step(lane);
        self.server
            .set_clock(self.ahead.load(Ordering::Relaxed) - by)?;
        self.ahead.fetch_sub(by, Ordering::Relaxed);
        lane.spell();
        self.set_forward(by, lane)
    }
}
