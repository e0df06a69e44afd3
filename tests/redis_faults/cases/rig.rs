//! Redis servers, what stands in them, and opening that fails.

use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, LockKeeper};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, Reply};

use crate::rig::{HANG, Waiting, Witness, until};

pub(crate) fn start(kind: RedisKind) -> RedisServer {
    RedisServer::start(kind, &RedisOptions::new()).unwrap()
}

pub(crate) fn open(url: &str, keys: &str) -> LockKeeper {
    lockkeeper::open(&format!("{url}/?{keys}")).unwrap()
}

/// Somebody with a keeper of its own who waits for `a`.
pub(crate) fn one_more_waits(url: &str, keys: &str, wait: Duration, witness: &Witness) -> Waiting {
    Waiting::start(&format!("{url}/?{keys}"), wait, witness)
}

/// Opening that fails as it should, and does not tell the password `s3cret`.
#[track_caller]
pub(crate) fn refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in says {
        assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
    }
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

/// How many stand in a name's line.
pub(crate) fn in_line(server: &RedisServer, name: &str) -> i64 {
    let line = format!("lockkeeper:{{default:{name}}}:line");
    server.command(&["LLEN", &line]).unwrap().int().unwrap()
}

/// All keys but those of epochs, which the server removes after a day.
pub(crate) fn left(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys = keys.items().iter().filter_map(Reply::text);
    keys.filter(|key| !key.ends_with(":epoch")).collect()
}

#[track_caller]
pub(crate) fn nothing_left(server: &RedisServer) {
    until("no key is left", || left(server).is_empty());
}

/// All keepers are gone: no key and no connection of theirs is left.
#[track_caller]
pub(crate) fn settled(server: &RedisServer) {
    nothing_left(server);
    until("only the one who asks is connected", || {
        let clients = server.info("clients").unwrap();
        clients.get("connected_clients").map(String::as_str) == Some("1")
    });
}
