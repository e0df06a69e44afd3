//! A server that begins to refuse commands, and keys of other types.

use std::time::Duration;

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, LockName, Released, WaitOutcome};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, cases, until};

use super::Case;
use super::store::{EPOCH_KEY, keys_left, open, start, start_waiter};
use crate::common::{HANG, Keepers as _, WAIT_LIMIT, Witness, refused};

pub(super) const CASES: &[Case] = cases![
    demoted_to_replica,
    password_changed,
    out_of_memory,
    lock_key_of_other_type,
    epoch_key_of_other_type,
    epoch_key_without_a_number,
    string_of_another_program,
    list_leaves_out_a_key_of_other_type,
];

fn demoted_to_replica(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        // A busy machine may leave no time for a reply.
        until("the server says why", || {
            let error = keeper.try_lock_for("b", wait).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            format!("{error:?}").contains("become a replica")
        });
    }
    // It cannot be renewed.
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let next = keeper.lock("a").unwrap();
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    server.assert_clean();
}

fn password_changed(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("s3cret")).unwrap();
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    let mut client = server.client().unwrap();
    let mut command = |words: &[&str]| client.command(words).unwrap();
    command(&["CONFIG", "SET", "requirepass", "0ther"]);
    command(&["CLIENT", "KILL", "TYPE", "normal"]);
    // The first call may have used the connection that was killed.
    let first = keeper.try_lock("b").unwrap_err();
    assert!(!format!("{first:?}").contains("s3cret"), "{first:?}");
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("password"), "{error}");
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let next = keeper.lock("a").unwrap();
    assert!(next.token() > held.token());
    drop((held, next, keeper, client));
    server.assert_clean();
}

fn out_of_memory(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=3s");
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = start_waiter(&server.url(), "", Duration::from_secs(20), &witness);
    until("the waiter is queued", || server.queue_length("a") == 1);
    let limit = |limit| {
        server
            .command(&["CONFIG", "SET", "maxmemory", limit])
            .unwrap();
    };
    limit("1");
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    // Renewal and release need no memory.
    held.renew().unwrap();
    let first = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    limit("0");
    assert!(waiting.answer().expect("it outlasts the outage") > first);
    drop(keeper);
    server.assert_clean();
}

fn lock_key_of_other_type(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let key = "lockkeeper:{default:a}";
    for words in [["RPUSH", key, "x"].as_slice(), &["HSET", key, "x", "y"]] {
        server.command(&["DEL", key]).unwrap();
        server.command(words).unwrap();
        let before = server.command(&["DUMP", key]).unwrap();
        for answer in [keeper.try_lock("a"), keeper.try_lock_for("a", HANG)] {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
            assert!(error.to_string().contains("another type"), "{error}");
        }
        assert_eq!(server.command(&["DUMP", key]).unwrap(), before);
    }
    server.command(&["DEL", key]).unwrap();
    drop(keeper.lock("a").unwrap());
    // While it is held.
    let held = keeper.lock("a").unwrap();
    server.command(&["DEL", key]).unwrap();
    server.command(&["RPUSH", key, "x"]).unwrap();
    held.renew().unwrap_err();
    let _ = held.release();
    assert_eq!(server.command(&["LLEN", key]).unwrap().int(), Some(1));
    server.command(&["DEL", key]).unwrap();
    drop(keeper);
    server.assert_clean();
}

fn epoch_key_of_other_type(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let key = EPOCH_KEY;
    server.command(&["RPUSH", key, "x"]).unwrap();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("another type"), "{error}");
    // A failed acquisition grants nothing.
    assert_eq!(keys_left(&server), Vec::<String>::new());
    server.command(&["DEL", key]).unwrap();
    drop(keeper.try_lock("a").unwrap().expect("it is free"));
    drop(keeper);
    server.assert_clean();
}

/// The name is not left taken, and the value stays.
fn epoch_key_without_a_number(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    for value in ["yes", "", "1e400", "12345678901234567890"] {
        server.command(&["SET", EPOCH_KEY, value]).unwrap();
        for _ in 0..2 {
            let error = keeper.try_lock("a").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
            assert!(error.to_string().contains(EPOCH_KEY), "{error}");
        }
        refused(&server.url(), ErrorKind::Incompatible, &[EPOCH_KEY]);
        let left = server.command(&["GET", EPOCH_KEY]).unwrap();
        assert_eq!(left.text().as_deref(), Some(value));
        assert_eq!(keys_left(&server), Vec::<String>::new());
    }
    server.command(&["DEL", EPOCH_KEY]).unwrap();
    drop(keeper.try_lock("a").unwrap().expect("it is free"));
    drop(keeper);
    server.assert_clean();
}

fn string_of_another_program(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let key = "lockkeeper:{default:a}";
    server.command(&["SET", key, "what?"]).unwrap();
    for answer in [keeper.try_lock("a"), keeper.try_lock_for("a", HANG)] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
        assert!(error.to_string().contains(key), "{error}");
    }
    let left = server.command(&["GET", key]).unwrap();
    assert_eq!(left.text().as_deref(), Some("what?"));
    server.command(&["DEL", key]).unwrap();
    drop(keeper.try_lock("a").unwrap().expect("it is free"));
    drop(keeper);
    server.assert_clean();
}

fn list_leaves_out_a_key_of_other_type(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let held = keeper.lock("a").unwrap();
    let key = "lockkeeper:{default:b}";
    server.command(&["RPUSH", key, "x"]).unwrap();
    let admin = keeper.admin().unwrap();
    let soon = || SystemClock.now() + WAIT_LIMIT;
    let all = admin.held(None, soon()).unwrap();
    assert_eq!(all.len(), 1);
    let all = admin.held_in_all_namespaces(soon()).unwrap();
    assert_eq!(all.len(), 1);
    let name = LockName::new("b").unwrap();
    let error = admin.held(Some(&name), soon()).unwrap_err();
    assert!(error.to_string().contains("another type"), "{error}");
    server.command(&["DEL", key]).unwrap();
    drop((held, keeper));
    server.assert_clean();
}
