//! Redis servers, keepers on them, and what is in them.

use std::time::Duration;

use lockkeeper::{LockGuard, LockKeeper};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, Reply};

use crate::common::{Waiter, Witness, opened, with_reply_time};

pub(crate) fn start(kind: RedisKind) -> RedisServer {
    RedisServer::start(kind, &RedisOptions::new()).unwrap()
}

/// Opens a keeper, with time for a reply on a busy machine where `keys` do not say it.
pub(crate) fn open(url: &str, keys: &str) -> LockKeeper {
    opened(&with_reply_time(&format!("{url}/?{keys}")))
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
