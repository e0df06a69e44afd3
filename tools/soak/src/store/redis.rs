//! A Redis server, and a proxy before it.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper_testkit::{Proxy, RedisKind, RedisOptions, RedisServer, Reply};

use super::{ServerSettings, Store, StoreFault};
use crate::faults::Lane;

/// Where the server keeps its data, in its folder.
const DATA: &str = "appendonlydir";

pub(super) struct Redis {
    proxy: Proxy,
    server: RedisServer,
    settings: ServerSettings,
    /// By how many milliseconds the server's clock is ahead, if it can be set.
    ahead: Option<AtomicI64>,
}

/// Starts a server that has its data after a restart: each change is written before its reply is sent.
pub(super) fn start(kind: RedisKind, options: RedisOptions) -> io::Result<RedisServer> {
    let options = options
        .config("appendonly", ["yes"])
        .config("appendfsync", ["no"])
        .config("appenddirname", [DATA]);
    RedisServer::start(kind, &options)
}

/// Removes the data of a server that was killed.
pub(super) fn remove_data(server: &RedisServer) -> io::Result<()> {
    fs::remove_dir_all(server.folder().join(DATA))
}

/// Returns all keys of servers but those of last epochs.
pub(super) fn keys<'a>(
    servers: impl IntoIterator<Item = &'a RedisServer>,
) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for server in servers {
        let keys = server.command(&["KEYS", "*"])?;
        let keys = keys.items().iter().filter_map(Reply::text);
        all.extend(keys.filter(|key| !key.ends_with(":epoch")));
    }
    Ok(all)
}

/// Returns by how many milliseconds a clock is set: by less than a ttl, and by more.
fn step(lane: &mut Lane<'_>) -> i64 {
    let step = lane.millis(1..10_000).as_millis();
    i64::try_from(step).unwrap_or_default()
}

impl Redis {
    pub(super) fn start(kind: RedisKind, settings: ServerSettings) -> io::Result<Self> {
        let mut options = RedisOptions::new();
        // After a step of the clock, the age of a server is wrong, by which `restart_grace` goes.
        let ahead = match kind.clock_ignored() {
            None if settings.restart_grace.is_none() => {
                options = options.settable_clock();
                Some(AtomicI64::new(0))
            }
            _ => None,
        };
        let server = start(kind, options)?;
        Ok(Self {
            proxy: Proxy::new(server.addr())?,
            server,
            settings,
            ahead,
        })
    }

    fn restart_empty(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        self.settings.kill(&self.server, lane)?;
        remove_data(&self.server)?;
        lane.spell();
        self.server.restart()
    }

    /// Sets the server's clock forward, which ends leases before their holders' time.
    fn set_forward(&self, by: i64, lane: &Lane<'_>, ahead: &AtomicI64) -> io::Result<()> {
        let ahead = ahead.fetch_add(by, Ordering::Relaxed) + by;
        lane.journal.forget(|| self.server.set_clock(ahead))
    }

    /// Sets the server's clock back for a while. Meanwhile, it does not end the leases of dead workers.
    fn set_back(&self, lane: &mut Lane<'_>, ahead: &AtomicI64) -> io::Result<()> {
        let by = step(lane);
        self.server.set_clock(ahead.load(Ordering::Relaxed) - by)?;
        ahead.fetch_sub(by, Ordering::Relaxed);
        lane.spell();
        self.set_forward(by, lane, ahead)
    }

    fn kill_connections(&self) -> io::Result<()> {
        let mut client = self.server.client()?;
        for of in ["pubsub", "normal"] {
            client.command(&["CLIENT", "KILL", "TYPE", of])?;
        }
        Ok(())
    }
}

impl Store for Redis {
    fn urls(&self) -> Vec<String> {
        let through = [self.server.addr(), self.proxy.addr()];
        through
            .map(|addr| {
                self.settings
                    .with_keys(&format!("{}/", self.server.url_via(addr)))
            })
            .into()
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        let mut faults = vec![
            StoreFault::new("server stopped", |lane| {
                self.server.stop()?;
                lane.spell();
                self.server.cont()
            }),
            StoreFault::new("server restarted with its data", |lane| {
                self.server.kill();
                lane.spell();
                self.server.restart()
            }),
            StoreFault::new("server restarted empty", |lane| self.restart_empty(lane)),
            StoreFault::new("all keys flushed", |lane| {
                let flush = || self.server.command(&["FLUSHALL"]).map(drop);
                lane.journal.forget(flush)
            }),
            StoreFault::new("all connections killed", |_| self.kill_connections()),
        ];
        if let Some(ahead) = &self.ahead {
            faults.extend([
                StoreFault::new("clock set forward", |lane| {
                    let by = step(lane);
                    self.set_forward(by, lane, ahead)
                }),
                StoreFault::new("clock set back for a while", |lane| {
                    self.set_back(lane, ahead)
                }),
            ]);
        }
        faults
    }

    fn connections(&self) -> io::Result<Vec<String>> {
        let mut client = self.server.client()?;
        let own = client.command(&["CLIENT", "ID"])?.int().unwrap_or_default();
        let list = client.command(&["CLIENT", "LIST"])?;
        let list = list.text().unwrap_or_default();
        let own = format!("id={own} ");
        let others = list.lines().filter(|line| !line.starts_with(&own));
        Ok(others.map(str::to_owned).collect())
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        keys([&self.server])
    }
}
