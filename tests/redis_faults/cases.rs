//! The faults, each on every server.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LostWait, Released};
use lockkeeper_testkit::{Counts, Fault, Proxy, RedisKind, RedisOptions, RedisServer};

#[path = "refused.rs"]
mod refused;
#[path = "rig.rs"]
mod rig;

use rig::{
    HANG, PATIENCE, Waiting, Witness, in_line, left, nothing_left, open, settled, start,
    threads_end, until,
};

type Case = (&'static str, fn(RedisKind));

const CASES: &[Case] = &[
    ("restarted_empty_while_held", restarted_empty_while_held),
    ("killed_for_good_while_held", killed_for_good_while_held),
    ("restarted_empty_while_waited_for", |kind| {
        besieged(kind, Memory::Lost, |server| server.restart().unwrap());
    }),
    ("flushed_while_held", flushed_while_held),
    ("flushed_while_waited_for", |kind| {
        besieged(kind, Memory::Lost, |server| {
            server.command(&["FLUSHALL"]).unwrap();
        });
    }),
    ("subscribers_killed", subscribers_killed),
    ("pooled_connections_killed", |kind| {
        besieged(kind, Memory::Kept, |server| {
            server
                .command(&["CLIENT", "KILL", "TYPE", "normal"])
                .unwrap();
        });
    }),
    ("paused", |kind| {
        besieged(kind, Memory::Kept, |server| {
            server.command(&["CLIENT", "PAUSE", "2500"]).unwrap();
        });
    }),
    ("asleep", |kind| {
        besieged(kind, Memory::Kept, |server| {
            server.command(&["DEBUG", "SLEEP", "2.5"]).unwrap();
        });
    }),
    ("stopped_past_every_deadline", stopped_past_every_deadline),
    ("turned_into_a_replica", turned_into_a_replica),
    ("password_changed", password_changed),
    ("scripts_flushed", scripts_flushed),
    ("out_of_memory", out_of_memory),
    ("key_of_another_type", key_of_another_type),
    ("epoch_of_another_type", epoch_of_another_type),
    ("line_of_another_type", line_of_another_type),
    ("request_dropped", |kind| {
        lost_on_the_way(kind, Fault::DropRequests);
    }),
    ("reply_dropped", |kind| {
        lost_on_the_way(kind, Fault::DropReplies);
    }),
    ("cut_before_the_reply", |kind| {
        lost_on_the_way(kind, Fault::CutReplyAfter(0));
    }),
    ("cut_mid_reply", |kind| {
        lost_on_the_way(kind, Fault::CutReplyAfter(2));
    }),
    ("dropped_grant_is_found_again", dropped_grant_is_found_again),
    ("reply_later_than_the_ttl", reply_later_than_the_ttl),
    ("request_later_than_the_wait", request_later_than_the_wait),
    ("dark_while_held", dark_while_held),
    ("dark_while_waited_for", dark_while_waited_for),
    ("contended_through_it_all", contended_through_it_all),
    ("wrong_password", refused::wrong_password),
    ("read_only_replica", refused::read_only_replica),
    ("no_room_at_opening", refused::no_room),
    ("nobody_there", refused::nobody_there),
    ("somebody_else_there", refused::somebody_else_there),
    ("tls_to_a_plain_port_and_the_reverse", refused::tls),
    ("no_permission", refused::no_permission),
    ("cluster_mode", refused::cluster_mode),
];

pub(crate) fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait more than they work.
    arguments.test_threads.get_or_insert(12);
    let trials = RedisKind::ALL.iter().flat_map(|&kind| {
        CASES.iter().map(move |&(name, case)| {
            Trial::ignorable_test(format!("{kind}::{name}"), move || match kind.ignored() {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    case(kind);
                    Ok::<_, Failed>(Completion::Completed)
                }
            })
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Now that nothing else runs, no thread of a keeper may.
    if !conclusion.has_failed() {
        threads_end();
    }
    conclusion.exit_code()
}

/// Whether the server knows afterwards who held what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Kept,
    Lost,
}

/// One holds, three processes' worth of keepers wait, and then the fault.
fn besieged(kind: RedisKind, memory: Memory, fault: impl FnOnce(&RedisServer)) {
    let server = start(kind);
    besieged_on(&server, memory, |_| fault(&server));
}

fn besieged_on(server: &RedisServer, memory: Memory, fault: impl FnOnce(&[Waiting])) {
    let witness = Witness::new(memory == Memory::Kept);
    // Time enough for its release to be answered, whatever the server does.
    let holder = open(&server.url(), "ttl=9s&response_timeout=10s");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiting: Vec<_> = (1..=3)
        .map(|number| {
            let waiting =
                Waiting::start(&server.url(), "ttl=9s", Duration::from_secs(25), &witness);
            until("it stands in line", || in_line(server, "a") == number);
            waiting
        })
        .collect();
    fault(&waiting);
    let first = held.token();
    if memory == Memory::Lost {
        // At its next renewal, not only when its time is over.
        assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
        assert_eq!(held.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(held.release().unwrap(), Released::AlreadyLost);
    } else {
        assert!(held.is_held());
        assert_eq!(held.release().unwrap(), Released::Done);
    }
    for waiting in waiting {
        let token = waiting.answer().expect("it is granted in the end");
        assert!(token > first.get());
    }
    drop(holder);
    settled(server);
}

fn restarted_empty_while_held(kind: RedisKind) {
    let server = start(kind);
    forgotten(&server, || server.restart().unwrap());
}

fn flushed_while_held(kind: RedisKind) {
    let server = start(kind);
    forgotten(&server, || {
        server.command(&["FLUSHALL"]).unwrap();
    });
}

fn forgotten(server: &RedisServer, forget: impl Fn()) {
    let [holder, rival] = [(); 2].map(|()| open(&server.url(), "ttl=6s"));
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    });
    let held = holder.lock("a").unwrap();
    let other = holder.acquire("b", &fixed).unwrap().unwrap();
    forget();
    // Its own time is not over, so it was the renewal that found it out.
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    assert_eq!(other.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!other.is_held());
    for (lost, name) in [(held, "a"), (other, "b")] {
        let next = rival.lock(name).unwrap();
        assert!(next.token() > lost.token());
        assert_eq!(lost.release().unwrap(), Released::AlreadyLost);
        assert!(next.is_held());
        assert_eq!(next.release().unwrap(), Released::Done);
    }
    drop((holder, rival));
    settled(server);
}

fn killed_for_good_while_held(kind: RedisKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let waiting = Waiting::start(&server.url(), "", Duration::from_secs(4), &witness);
    until("it stands in line", || in_line(&server, "a") == 1);
    server.kill();
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    let kind = waiting.answer().expect_err("nobody is there to grant it");
    assert!(
        matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown),
        "{kind:?}"
    );
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.restart().unwrap();
    let next = keeper.lock("a").unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    settled(&server);
}

fn subscribers_killed(kind: RedisKind) {
    let server = start(kind);
    besieged_on(&server, Memory::Kept, |_| {
        let listening = || {
            let list = ["CLIENT", "LIST", "TYPE", "pubsub"];
            let text = server.command(&list).unwrap().text().unwrap();
            text.lines().filter(|line| line.contains("sub=1")).count()
        };
        until("all listen", || listening() == 3);
        let killed = server
            .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .unwrap();
        assert_eq!(killed.int(), Some(3));
        until("all listen again", || listening() == 3);
    });
}

fn stopped_past_every_deadline(kind: RedisKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let holder = open(&server.url(), "ttl=2s&response_timeout=300ms");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiting: Vec<_> = (1..=3)
        .map(|number| {
            let wait = Duration::from_secs(3);
            // What is granted in the end to those who are gone, ends with its ttl.
            let waiting = Waiting::start(&server.url(), "ttl=2s", wait, &witness);
            until("it stands in line", || in_line(&server, "a") == number);
            waiting
        })
        .collect();
    server.stop().unwrap();
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    for waiting in waiting {
        let kind = waiting.answer().expect_err("nobody is there to grant it");
        assert!(
            matches!(
                kind,
                ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::TimedOut
            ),
            "{kind:?}"
        );
    }
    server.cont().unwrap();
    let next = holder
        .try_lock_for("a", PATIENCE)
        .unwrap()
        .expect("it has ended");
    witness.enter(&next);
    drop((held, next, holder));
    settled(&server);
}

fn turned_into_a_replica(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for answer in [keeper.try_lock("b"), keeper.try_lock_for("b", HANG)] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        assert!(error.to_string().contains("read-only replica"), "{error}");
    }
    // It cannot be renewed.
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let next = keeper.lock("a").unwrap();
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    settled(&server);
}

fn password_changed(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("s3cret")).unwrap();
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    let mut client = server.client().unwrap();
    let mut say = |words: &[&str]| client.command(words).unwrap();
    say(&["CONFIG", "SET", "requirepass", "0ther"]);
    say(&["CLIENT", "KILL", "TYPE", "normal"]);
    // The first may have got through on the connection that was killed.
    let first = keeper.try_lock("b").unwrap_err();
    assert!(!format!("{first:?}").contains("s3cret"), "{first:?}");
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("password"), "{error}");
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    say(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let next = keeper.lock("a").unwrap();
    assert!(next.token() > held.token());
    drop((held, next, keeper, client));
    settled(&server);
}

fn scripts_flushed(kind: RedisKind) {
    let server = start(kind);
    let flush = || {
        server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
    };
    let keeper = open(&server.url(), "ttl=1s");
    flush();
    let guards = ["a", "b", "c"].map(|name| {
        let guard = keeper.lock(name).unwrap();
        flush();
        guard
    });
    // Past the first ttl, so that the keeper's own renewals have met it, too.
    let renewed = Instant::now();
    until("two ttls are over", || {
        flush();
        renewed.elapsed() > Duration::from_secs(2)
    });
    for guard in guards {
        assert!(guard.is_held());
        guard.renew().unwrap();
        flush();
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    besieged_on(&server, Memory::Kept, |_| flush());
}

fn out_of_memory(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=3s");
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = Waiting::start(&server.url(), "", Duration::from_secs(20), &witness);
    until("it stands in line", || in_line(&server, "a") == 1);
    let limit = |limit| {
        server
            .command(&["CONFIG", "SET", "maxmemory", limit])
            .unwrap();
    };
    limit("1");
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    // What is held is kept and given back: neither needs room.
    held.renew().unwrap();
    let first = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    limit("0");
    assert!(waiting.answer().expect("it rides that out") > first);
    drop(keeper);
    settled(&server);
}

fn key_of_another_type(kind: RedisKind) {
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
    settled(&server);
}

fn epoch_of_another_type(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let key = "lockkeeper:{default:a}:epoch";
    server.command(&["RPUSH", key, "x"]).unwrap();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("another type"), "{error}");
    // Nobody was told that it holds, so nobody does.
    assert_eq!(left(&server), Vec::<String>::new());
    server.command(&["DEL", key]).unwrap();
    drop(keeper.try_lock("a").unwrap().expect("nobody holds it"));
    drop(keeper);
    settled(&server);
}

fn line_of_another_type(kind: RedisKind) {
    let server = start(kind);
    let [keeper, rival] = [(); 2].map(|()| open(&server.url(), ""));
    let key = "lockkeeper:{default:a}:line";
    server.command(&["HSET", key, "x", "y"]).unwrap();
    let held = keeper.lock("a").unwrap();
    let error = rival.try_lock_for("a", HANG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("another type"), "{error}");
    assert!(held.is_held());
    // However that ends, the name is free.
    let _ = held.release();
    let next = rival.try_lock("a").unwrap().expect("it was given back");
    let _ = next.release();
    server.command(&["DEL", key]).unwrap();
    drop((keeper, rival));
    settled(&server);
}

/// A keeper by way of a proxy, and another one that sees the server as it is.
fn lost_on_the_way(kind: RedisKind, fault: Fault) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let keeper = open(&url, "ttl=20s&response_timeout=300ms&wait=20s");
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    for name in ["first", "a", "a"] {
        proxy.once("EVALSHA", fault);
        let guard = keeper.lock(name).unwrap();
        assert!(guard.is_held());
        witness_for(&witness, name, &guard);
        assert!(rival.try_lock(name).unwrap().is_none());
        proxy.once("EVALSHA", fault);
        guard.renew().unwrap();
        assert!(guard.is_held());
        proxy.once("EVALSHA", fault);
        assert_eq!(guard.release().unwrap(), Released::Done);
        assert_eq!(left(&server), Vec::<String>::new());
        let next = rival.try_lock(name).unwrap().expect("it was released");
        witness_for(&witness, name, &next);
    }
    // Waited for, in every look.
    let held = rival.lock("a").unwrap();
    witness.enter(&held);
    let waiting = Waiting::start(
        &url,
        "response_timeout=300ms",
        Duration::from_secs(20),
        &witness,
    );
    until("it stands in line", || in_line(&server, "a") == 1);
    for _ in 0..3 {
        proxy.once("EVALSHA", fault);
    }
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiting.answer().expect("it is granted in the end") > token);
    drop((keeper, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

fn witness_for(witness: &Witness, name: &str, guard: &LockGuard) {
    if name == "a" {
        witness.enter(guard);
    }
}

fn dropped_grant_is_found_again(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=30s&response_timeout=1s&wait=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    drop(keeper.lock("a").unwrap());
    proxy.once("EVALSHA", Fault::DropReplies);
    let guard = thread::scope(|scope| {
        let granted = scope.spawn(|| keeper.lock("a").unwrap());
        assert!(proxy.wait_for(PATIENCE, |counts| counts.dropped_replies == 1));
        let epoch = server
            .command(&["GET", "lockkeeper:{default:a}:epoch"])
            .unwrap();
        let guard = granted.join().unwrap();
        let minted = epoch.text().unwrap().parse::<u64>().unwrap();
        // The grant that nobody heard of, and no second one.
        assert_eq!(guard.token().get() >> 7, minted);
        guard
    });
    assert!(guard.is_held());
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(left(&server), Vec::<String>::new());
    drop(keeper);
    settled(&server);
}

fn reply_later_than_the_ttl(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=500ms&response_timeout=10s&wait=8s";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    drop(slow.lock("a").unwrap());
    let witness = Witness::new(true);
    proxy.once("EVALSHA", Fault::DelayReplies(Duration::from_secs(3)));
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let answer = slow.lock("a");
            if let Ok(guard) = &answer {
                witness.enter(guard);
            }
            answer.map(LockGuard::release)
        });
        assert!(proxy.wait_for(PATIENCE, |counts| counts.held == 1));
        // It was granted there, and nobody renewed it.
        let taken = rival.lock("a").unwrap();
        witness.enter(&taken);
        // Whatever came of it: an error, a guard that knows that it is lost, or a later grant. The
        // witness has looked.
        until("it has an answer", || late.is_finished());
        assert!(taken.is_held());
        assert_eq!(taken.release().unwrap(), Released::Done);
        let _ = late.join().unwrap();
    });
    drop((slow, rival));
    settled(&server);
}

fn request_later_than_the_wait(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=1s&response_timeout=200ms&wait=500ms";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    drop(slow.lock("a").unwrap());
    proxy.set(Fault::DelayRequests(Duration::from_millis(1500)));
    let error = slow.lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    proxy.set(Fault::Pass);
    // What arrives late is granted to nobody: it ends with its ttl.
    let first = rival.lock("a").unwrap();
    assert!(first.is_held());
    let token = first.token();
    assert_eq!(first.release().unwrap(), Released::Done);
    nothing_left(&server);
    let again = slow.try_lock_for("a", PATIENCE).unwrap().unwrap();
    assert!(again.token() > token);
    drop((again, slow, rival));
    settled(&server);
}

fn dark_while_held(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=2s&response_timeout=300ms&connect_timeout=300ms&wait=1s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::Dark);
    // Not before the other one knows: the witness looks.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    assert!(next.token() > held.token());
    for answer in [
        keeper.try_lock("b"),
        keeper.try_lock_for("b", PATIENCE / 10),
    ] {
        let error = answer.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
            "{error:?}"
        );
    }
    // What was sent in the dark arrives now, and harms nobody.
    proxy.set(Fault::Pass);
    let _ = held.release();
    assert!(
        keeper
            .try_lock_for("a", Duration::from_millis(300))
            .unwrap()
            .is_none()
    );
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    let again = keeper.try_lock_for("a", PATIENCE).unwrap().unwrap();
    witness.enter(&again);
    drop((again, keeper, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

fn dark_while_waited_for(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let keys = "ttl=2s&response_timeout=300ms&connect_timeout=300ms";
    let witness = Witness::new(true);
    let holder = open(&server.url(), "ttl=20s");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let [short, long] = [3, 25].map(|wait| {
        let before = in_line(&server, "a");
        let waiting = Waiting::start(&url, keys, Duration::from_secs(wait), &witness);
        until("it stands in line", || in_line(&server, "a") == before + 1);
        waiting
    });
    proxy.set(Fault::Dark);
    let kind = short.answer().expect_err("it never heard of a grant");
    assert!(
        matches!(
            kind,
            ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Unknown
        ),
        "{kind:?}"
    );
    // Those that are gone hold nobody else up.
    let first = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = holder.try_lock_for("a", HANG).unwrap().expect("it is free");
    witness.enter(&next);
    assert_eq!(next.release().unwrap(), Released::Done);
    proxy.set(Fault::Pass);
    assert!(long.answer().expect("it rides that out") > first);
    drop(holder);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

/// Many take turns while the network goes through all its faults.
fn contended_through_it_all(kind: RedisKind) {
    const WAIT: Duration = Duration::from_secs(1);
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let witness = Witness::new(true);
    let over = AtomicBool::new(false);
    // One of them is not behind the proxy.
    let keys = "ttl=1s&response_timeout=200ms&connect_timeout=200ms&wait=1s";
    let urls = [proxy.addr(), proxy.addr(), server.addr()].map(|addr| server.url_via(addr));
    let keepers = urls.map(|url| open(&url, keys));
    thread::scope(|scope| {
        for keeper in keepers.iter().flat_map(|keeper| [keeper; 2]) {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    match keeper.lock("a") {
                        Ok(guard) => witness.enter(&guard),
                        Err(error) => assert!(error.is_retryable(), "{error:?}"),
                    }
                    let took = began.elapsed();
                    assert!(took < WAIT + HANG, "{took:?}");
                }
            });
        }
        // Ends the others also where this panics.
        let _over = Over(&over);
        let delay = Duration::from_millis(1500);
        for (fault, count) in [
            (Fault::DropRequests, dropped as fn(&Counts) -> u64),
            (Fault::DropReplies, dropped),
            (Fault::CutReplyAfter(3), |counts| counts.cut),
            (Fault::DelayRequests(delay), |counts| counts.held),
            (Fault::DelayReplies(delay), |counts| counts.held),
            (Fault::Dark, |counts| counts.accepted),
        ] {
            let before = count(&proxy.counts());
            proxy.set(fault);
            let met = proxy.wait_for(PATIENCE, |counts| count(counts) >= before + 6);
            assert!(met, "{fault:?} is not met");
            proxy.set(Fault::Pass);
            let before = witness.grants();
            until("it goes on", || witness.grants() >= before + 20);
        }
    });
    drop(keepers);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

fn dropped(counts: &Counts) -> u64 {
    counts.dropped_requests + counts.dropped_replies
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
