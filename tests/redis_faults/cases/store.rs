//! Redis servers as the common cases see them, and what is in them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkeeper::{LockGuard, LockKeeper};
use lockkeeper_testkit::{Daemon, RedisKind, RedisOptions, RedisServer, Reply, until};

use super::clock;
use super::cluster::on_redis_6;
use crate::faults::{FaultServer, Waiter, Witness, opened, with_reply_time};

impl FaultServer for RedisServer {
    type Kind = RedisKind;

    const LOCK_REQUEST: &'static str = "EVALSHA";
    const MID_REPLY: usize = 2;
    const LEASE_OUTLIVES_CONNECTION: bool = true;

    fn start(kind: RedisKind) -> Self {
        start(kind)
    }

    fn addr(&self) -> SocketAddr {
        Self::addr(self)
    }

    fn daemon(&self) -> &Daemon {
        self
    }

    fn restart(&self) -> io::Result<()> {
        Self::restart(self)
    }

    fn base_url(&self, addr: SocketAddr) -> String {
        format!("{}/?", self.url_via(addr))
    }

    fn urls_of(addr: &str) -> [String; 2] {
        ["redis", "rediss"].map(|scheme| format!("{scheme}://{addr}/?"))
    }

    fn socket_url(&self) -> Option<String> {
        Some(format!("unix:{}", self.socket().display()))
    }

    fn queue_length(&self, name: &str) -> usize {
        waiting_at(self, &format!("lockkeeper:{{default:{name}}}"))
    }

    fn further() -> Vec<Trial> {
        let mut further = on_redis_6();
        further.extend(clock::trials());
        further
    }

    /// No key and no connection of a keeper is left.
    fn assert_clean(&self) {
        until("no key is left", || keys_left(self).is_empty());
        until("only this test is connected", || {
            let clients = self.info("clients").unwrap();
            clients.get("connected_clients").map(String::as_str) == Some("1")
        });
    }
}

pub(crate) fn start(kind: RedisKind) -> RedisServer {
    RedisServer::start(kind, &RedisOptions::new()).unwrap()
}

/// Opens a keeper, with time for a reply on a busy machine where `keys` do not say it.
pub(crate) fn open(url: &str, keys: &str) -> LockKeeper {
    opened(&format!("{url}/?{}", with_reply_time(keys)))
}

/// Starts a waiter for `a`.
pub(crate) fn start_waiter(url: &str, keys: &str, wait: Duration, witness: &Witness) -> Waiter {
    Waiter::start(open(url, keys), wait, witness)
}

/// Returns how many waiters a key has: those in a sorted set with a score below zero.
pub(crate) fn waiting_at(server: &RedisServer, key: &str) -> usize {
    let mut client = server.client().unwrap();
    // A replica in a cluster tells of its keys only then. Other servers refuse this.
    client.raw(&["READONLY"]).unwrap();
    if client.command(&["TYPE", key]).unwrap().text().as_deref() != Some("zset") {
        return 0;
    }
    let waiting = client.command(&["ZCOUNT", key, "-inf", "(0"]).unwrap();
    usize::try_from(waiting.int().unwrap()).unwrap()
}

/// Returns how many providers listen on the server.
pub(crate) fn listening(server: &RedisServer) -> usize {
    let channels = ["PUBSUB", "CHANNELS", "lockkeeper:wake:*"];
    server.command(&channels).unwrap().items().len()
}

/// The key of the last epoch of all names.
pub(crate) const EPOCH_KEY: &str = "lockkeeper:{default}:epoch";

/// Returns all keys but that of the last epoch, which stays.
pub(crate) fn keys_left(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys = keys.items().iter().filter_map(Reply::text);
    keys.filter(|key| key != EPOCH_KEY).collect()
}

/// Returns the epoch that the server minted at this time, in microseconds of its clock.
pub(crate) fn epoch_at(micros: u64) -> u64 {
    let epoch = (u128::from(micros) << 24) / 1_000_000;
    u64::try_from(epoch).unwrap()
}

/// Returns the time of the last epoch, in microseconds of the server's clock.
pub(crate) fn last_minted(server: &RedisServer) -> u64 {
    let last = server.command(&["GET", EPOCH_KEY]).unwrap();
    last.text().unwrap().parse().unwrap()
}

/// Returns the epoch of a guard's token.
pub(crate) fn epoch_of(guard: &LockGuard) -> u64 {
    guard.token().get() >> 7
}
