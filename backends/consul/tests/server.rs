//! The store against real servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[path = "server/opening.rs"]
mod opening;
#[path = "../../register/tests/table/cases.rs"]
#[allow(
    dead_code,
    reason = "some cases need a table, or a version for each entry of a transaction"
)]
mod shared;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_consul::{ConsulOptions, ConsulStore};
use lockkeeper_core::{CancelToken, Clock, StoreInfo, SystemClock};
use lockkeeper_register::{Call, Key, Read, RegisterStore, Version, Write};
use lockkeeper_testkit::{ConsulCluster, ConsulKind, ConsulServer, Fault, Proxy, suite, until};

use shared::{call, entry, key, write, written};

const LONG: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let cases: [suite::Case<ConsulKind>; 11] = [
        ("writes_have_conditions", writes_have_conditions),
        ("large_batches_are_split", large_batches_are_split),
        ("names_are_bytes", |kind| {
            shared::names_are_bytes(&open(&options(&start(kind))));
        }),
        ("sessions_end_in_time", sessions_end_in_time),
        ("sessions_outlive_agents", sessions_outlive_agents),
        ("waits_end_with_a_change", waits_end_with_a_change),
        ("leader_is_killed", leader_is_killed),
        ("tokens_need_rights", opening::tokens_need_rights),
        ("what_is_no_store", opening::what_is_no_store),
        (
            "replaced_cluster_is_followed",
            opening::replaced_cluster_is_followed,
        ),
        ("examined", opening::examined),
    ];
    let mut trials = suite::trials(cases);
    trials.extend(suite::trials([
        (
            "ttl_of_twenty_seconds",
            opening::ttl_of_twenty_seconds as fn(ConsulKind),
        ),
        ("encrypted", opening::encrypted),
    ]));
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

fn start(kind: ConsulKind) -> ConsulServer {
    ConsulServer::start(kind, &lockkeeper_testkit::ConsulOptions::new()).unwrap()
}

fn options(server: &ConsulServer) -> ConsulOptions {
    ConsulOptions::tcp("127.0.0.1", server.addr().port()).response_timeout(LONG)
}

fn open(options: &ConsulOptions) -> ConsulStore {
    let options = options.clone().connect_timeout(LONG);
    ConsulStore::open(&options, "shop", Arc::new(SystemClock)).unwrap()
}

/// Returns whether the store tells that a session has ended. It is kept if a ttl is given.
fn has_ended(store: &ConsulStore, session: &str, ttl: Option<Duration>) -> bool {
    let kept = ttl.map(|ttl| (session, ttl));
    let check: &[_] = if ttl.is_some() { &[] } else { &[session] };
    let read = Read {
        keep: kept.as_slice(),
        check,
        ..Read::default()
    };
    !store.read(&read, call()).unwrap().ended.is_empty()
}

fn sent(store: &ConsulStore) -> u64 {
    store.usage().unwrap().commands
}

fn writes_have_conditions(kind: ConsulKind) {
    let server = start(kind);
    let store = open(&options(&server));
    shared::entry_is_written_under_its_conditions(&store);
    let (a, b, floor) = (key("a"), key("b"), Key::of_namespace("floor"));
    let first = written(&store, write(&a, None, Some("1"))).unwrap();
    let same = written(&store, write(&a, Some(first), Some("1"))).unwrap();

    // Only those fail whose conditions do not hold.
    let floor_at = written(&store, write(&floor, None, Some("9"))).unwrap();
    let session = store.open_session(LONG, call()).unwrap();
    let ended = store.open_session(LONG, call()).unwrap();
    store.end_sessions(&[&ended], call()).unwrap();
    let names: Vec<_> = ["c", "d", "e", "f"].map(key).into();
    let writes = [
        write(&a, Some(first), Some("3")),
        write(&a, Some(same), Some("4")),
        write(&b, Some(7), None),
        Write {
            session: Some(&session),
            ..write(&names[0], None, Some("c"))
        },
        Write {
            session: Some(&ended),
            ..write(&names[1], None, Some("d"))
        },
        Write {
            also: Some((&floor, floor_at)),
            ..write(&names[2], None, Some("e"))
        },
        Write {
            also: Some((&floor, floor_at + 1)),
            ..write(&names[3], None, Some("f"))
        },
    ];
    let done = store.write(&writes, call()).unwrap();
    let done: Vec<_> = done.iter().map(Option::is_some).collect();
    assert_eq!(done, [false, true, false, true, false, true, false]);
    assert!(entry(&store, &names[1]).is_none() && entry(&store, &names[3]).is_none());

    let (version, value) = entry(&store, &a).unwrap();
    assert_eq!(value, "4");
    assert!(written(&store, write(&a, Some(version), None)).is_some());
    let again = written(&store, write(&a, None, Some("4"))).unwrap();
    assert!(
        again > version,
        "the version of an entry that was made anew"
    );
}

fn large_batches_are_split(kind: ConsulKind) {
    let server = start(kind);
    let store = open(&options(&server));
    let value = "x".repeat(64 << 10);
    // All values are 21 MiB in base64. No reply has more than 16 MiB.
    let keys: Vec<_> = (0..256).map(|number| key(&number.to_string())).collect();
    let writes: Vec<_> = keys
        .iter()
        .map(|key| write(key, None, Some(&value)))
        .collect();
    let written = store.write(&writes, call()).unwrap();
    assert!(written.iter().all(Option::is_some));
    let sessions = vec!["72bb46bb-c712-80dd-12c1-26184746bd1f"; 100];
    assert_eq!(store.list(call()).unwrap().len(), 256);
    let refs: Vec<_> = keys.iter().take(64).collect();
    let read = Read {
        keys: &refs,
        check: &sessions,
        ..Read::default()
    };
    let view = store.read(&read, call()).unwrap();
    assert!(view.entries.iter().flatten().all(|it| it.value == value));
    assert_eq!((view.entries.len(), view.ended.len()), (64, 100));
}

/// The margins of a guard rely on the lower bound, and waiting processes on the upper one.
fn sessions_end_in_time(kind: ConsulKind) {
    let server = start(kind);
    let store = open(&options(&server));
    let ttl = 2 * SECOND;
    thread::scope(|scope| {
        for kept in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut began = Instant::now();
                let session = store.open_session(ttl, call()).unwrap();
                for _ in 0..kept {
                    thread::sleep(SECOND / 2);
                    began = Instant::now();
                    assert!(!has_ended(store, &session, Some(ttl)));
                }
                let asked = Instant::now();
                while !has_ended(store, &session, None) {
                    thread::sleep(SECOND / 100);
                }
                let (least, most) = (asked.elapsed(), began.elapsed());
                assert!(most >= ttl / 2, "it ended {most:?} after its renewal");
                println!("a session of {ttl:?} ended {least:?} after its renewal");
                assert!(has_ended(store, &session, Some(ttl)), "none lives again");
            });
        }
    });
}

/// The node of an agent that leaves is deregistered, and Consul ends all sessions of such a node.
fn sessions_outlive_agents(kind: ConsulKind) {
    let cluster = ConsulCluster::start(kind, &lockkeeper_testkit::ConsulOptions::new()).unwrap();
    let leader = cluster.leader(&[]).unwrap();
    let [left, other] = [(leader + 1) % 3, (leader + 2) % 3].map(|at| &cluster.members()[at]);
    let session = open(&options(left)).open_session(LONG, call()).unwrap();
    left.call("PUT", "/v1/agent/leave", None, "").unwrap();
    let store = open(&options(other));
    until("two agents are left, and that of the sessions", || {
        let nodes = other.call("GET", "/v1/catalog/nodes", None, "").unwrap();
        nodes.as_array().unwrap().len() == 3
    });
    assert!(!has_ended(&store, &session, Some(LONG)));
}

fn waits_end_with_a_change(kind: ConsulKind) {
    let server = start(kind);
    let store = open(&options(&server));
    let name = key("a");
    let wait = |seen, call| store.wait(&name, seen, call).unwrap().unwrap();
    let changes = |seen, change: &dyn Fn() -> Option<Version>| {
        let before = sent(&store);
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                wait(seen, call());
                entry(&store, &name).map(|(version, _)| version)
            });
            until("the request is sent", || sent(&store) > before);
            let changed = change();
            (waiting.join().unwrap(), changed)
        });
        assert_eq!(waiting.0, waiting.1);
        waiting.1
    };
    let first = changes(None, &|| written(&store, write(&name, None, Some("1"))));
    let second = changes(first, &|| written(&store, write(&name, first, Some("2"))));
    changes(second, &|| {
        assert!(written(&store, write(&name, second, None)).is_some());
        None
    });

    // A wait whose entry has changed before it began ends at once.
    let third = written(&store, write(&name, None, Some("3")));
    wait(None, call());
    wait(second, call());
    let bounded = Call::until(SystemClock.now() + SECOND / 5);
    wait(third, bounded);
    let (cancel, before) = (CancelToken::new(), sent(&store));
    let cancelled = Call {
        cancel: Some(&cancel),
        ..call()
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(third, cancelled));
        until("the request is sent", || sent(&store) > before);
        cancel.cancel();
        waiting.join().unwrap();
    });

    // An agent stays in use if its reply to a wait is late.
    let proxy = Proxy::new(server.addr()).unwrap();
    let (by_proxy, port) = (proxy.addr().port(), server.addr().port());
    let two = ConsulOptions::tcp("127.0.0.1", by_proxy).agent("127.0.0.1", port);
    let store = open(&two.response_timeout(LONG));
    proxy.set(Fault::DropReplies);
    let late = Call::until(SystemClock.now() + SECOND / 5);
    assert!(store.wait(&name, third, late).unwrap().is_ok());
    proxy.set(Fault::Pass);
    let before = proxy.counts().requests;
    assert!(entry(&store, &name).is_some());
    assert!(proxy.counts().requests > before);

    // One connection is left for requests.
    let store = open(&options(&server).pool_size(2));
    let (cancel, before) = (CancelToken::new(), sent(&store));
    let cancelled = Call {
        cancel: Some(&cancel),
        ..call()
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&name, third, cancelled));
        until("the request is sent", || sent(&store) > before);
        assert!(store.wait(&name, third, call()).is_none());
        assert!(entry(&store, &name).is_some());
        cancel.cancel();
        assert!(waiting.join().unwrap().is_some());
    });
    assert_eq!(store.usage().unwrap().connections, 1);
}

fn leader_is_killed(kind: ConsulKind) {
    let cluster = ConsulCluster::start(kind, &lockkeeper_testkit::ConsulOptions::new()).unwrap();
    let leader = cluster.leader(&[]).unwrap();
    // The leader is asked first.
    let agents = (0..3).map(|at| cluster.members()[(leader + at) % 3].addr().port());
    let mut agents = agents.collect::<Vec<_>>().into_iter();
    let first = ConsulOptions::tcp("127.0.0.1", agents.next().unwrap());
    let options = agents.fold(first, |options, port| options.agent("127.0.0.1", port));
    let store = open(&options);
    let name = key("a");
    let session = store.open_session(LONG, call()).unwrap();
    let version = written(&store, write(&name, None, Some("1")));
    cluster.members()[leader].kill();
    let kept = [(&*session, LONG)];
    let asked = Read {
        keep: &kept,
        keys: &[&name],
        check: &[],
    };
    let view = loop {
        match store.read(&asked, call()) {
            Ok(view) => break view,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert_eq!(view.entries[0].as_ref().map(|it| it.version), version);
    assert_eq!(view.ended, Vec::<String>::new());
    assert!(written(&store, write(&name, version, Some("2"))).is_some());
}
