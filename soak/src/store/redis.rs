//! A Redis server, and a proxy before it.

use std::fs;
use std::io;

use lockkeeper_testkit::{Proxy, RedisKind, RedisOptions, RedisServer, Reply};

use super::{ServerSettings, Store, StoreFault};
use crate::faults::Lane;

/// Where the server keeps its data, in its folder.
const DATA: &str = "appendonlydir";

pub(super) struct Redis {
    proxy: Proxy,
    server: RedisServer,
    settings: ServerSettings,
}

/// Starts a server that has its data after a restart: each change is written before its reply is sent.
pub(super) fn start(kind: RedisKind) -> io::Result<RedisServer> {
    let options = RedisOptions::new()
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

impl Redis {
    pub(super) fn start(kind: RedisKind, settings: ServerSettings) -> io::Result<Self> {
        let server = start(kind)?;
        Ok(Self {
            proxy: Proxy::new(server.addr())?,
            server,
            settings,
        })
    }

    fn restart_empty(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        self.settings.kill(&self.server, lane)?;
        remove_data(&self.server)?;
        lane.spell();
        self.server.restart()
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
        vec![
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
        ]
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
