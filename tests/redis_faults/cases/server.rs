//! A server that dies, forgets, hangs or loses its clients.

use std::time::{Duration, Instant};

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, Released, WaitOutcome};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

use super::Case;
use super::rig::{in_line, one_more_waits, open, settled, start};
use crate::rig::{PATIENCE, Waiting, Witness, until};

pub(super) const CASES: &[Case] = &[
    ("restarted_empty_while_held", restarted_empty_while_held),
    (
        "restarted_empty_before_the_release",
        restarted_empty_before_the_release,
    ),
    ("killed_while_pooled", killed_while_pooled),
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
    ("scripts_flushed", scripts_flushed),
];

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
                one_more_waits(&server.url(), "ttl=9s", Duration::from_secs(25), &witness);
            until("it stands in line", || in_line(server, "a") == number);
            waiting
        })
        .collect();
    fault(&waiting);
    let first = held.token();
    if memory == Memory::Lost {
        // At its next renewal, not only when its time is over.
        assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
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
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
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

/// A server that listens on TCP, with TLS and on a unix socket, and its URL and keys for each.
fn on_every_transport(kind: RedisKind) -> (RedisServer, [String; 3]) {
    let server = RedisServer::start(kind, &RedisOptions::new().tls()).unwrap();
    let authority = server.certificates().unwrap().authority.display();
    let urls = [
        format!("{}/?", server.url()),
        format!("{}/?ca_file={authority}&", server.tls_url().unwrap()),
        format!("unix:{}?", server.socket().display()),
    ];
    (server, urls)
}

/// The connection that the release uses was closed by the server while it was in the pool.
fn restarted_empty_before_the_release(kind: RedisKind) {
    let (server, urls) = on_every_transport(kind);
    for url in urls {
        // No renewal takes place before the release.
        let keeper = lockkeeper::open(&format!("{url}ttl=60s")).unwrap();
        let held = keeper.lock("a").unwrap();
        server.restart().unwrap();
        let rival = lockkeeper::open(&url).unwrap();
        let next = rival.lock("a").unwrap();
        assert_eq!(held.release().unwrap(), Released::AlreadyLost, "{url}");
        assert!(next.is_held());
        assert_eq!(next.release().unwrap(), Released::Done);
    }
    settled(&server);
}

/// A request that was never sent is not in doubt, and does not wait for an answer.
fn killed_while_pooled(kind: RedisKind) {
    let (server, urls) = on_every_transport(kind);
    for url in urls {
        let keeper = lockkeeper::open(&url).unwrap();
        let unavailable = |error: lockkeeper::Error| {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
        };
        server.kill();
        unavailable(keeper.try_lock("a").unwrap_err());
        server.restart().unwrap();
        let held = keeper.lock("a").unwrap();
        server.kill();
        unavailable(held.renew().unwrap_err());
        server.restart().unwrap();
        let held = keeper.lock("b").unwrap();
        server.kill();
        unavailable(held.release().unwrap_err());
        server.restart().unwrap();
    }
    settled(&server);
}

fn killed_for_good_while_held(kind: RedisKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let waiting = one_more_waits(&server.url(), "", Duration::from_secs(4), &witness);
    until("it stands in line", || in_line(&server, "a") == 1);
    server.kill();
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
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
            let waiting = one_more_waits(&server.url(), "ttl=2s", wait, &witness);
            until("it stands in line", || in_line(&server, "a") == number);
            waiting
        })
        .collect();
    server.stop().unwrap();
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
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

fn scripts_flushed(kind: RedisKind) {
    let server = start(kind);
    let flush = || {
        server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
    };
    let keeper = open(&server.url(), "ttl=3s");
    flush();
    let guards = ["a", "b", "c"].map(|name| {
        let guard = keeper.lock(name).unwrap();
        flush();
        guard
    });
    // Past the first ttl, so that the keeper's own renewals have met it, too.
    let renewed = Instant::now();
    until("the ttl is over", || {
        flush();
        renewed.elapsed() > Duration::from_secs(4)
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
