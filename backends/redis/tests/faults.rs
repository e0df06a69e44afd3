//! A server and a network that misbehave, for real.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Config, Drivers, ErrorKind, LeasePolicy, LockKeeper, Released};
use lockkeeper_redis::RedisDriver;
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer};

fn start() -> RedisServer {
    let options = RedisOptions::new().config("enable-debug-command", ["yes"]);
    RedisServer::start(RedisKind::Redis7, &options).unwrap()
}

fn open(url: &str) -> LockKeeper {
    let config = Config::from_url(url).unwrap();
    Drivers::new().with(RedisDriver).open(&config).unwrap()
}

fn through(server: &RedisServer, proxy: &Proxy, keys: &str) -> LockKeeper {
    open(&format!("{}/?{keys}", server.url_via(proxy.addr())))
}

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// How many stand in the line of `a`.
fn waiting(server: &RedisServer) -> i64 {
    let line = server.command(&["LLEN", "lockkeeper:{default:a}:line"]);
    line.unwrap().int().unwrap()
}

/// All keys but those of epochs.
fn left(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys = keys
        .items()
        .iter()
        .filter_map(lockkeeper_testkit::Reply::text);
    keys.filter(|key| !key.ends_with(":epoch")).collect()
}

#[test]
fn a_lost_grant_is_found_by_asking_again() {
    let server = start();
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = through(&server, &proxy, "response_timeout=200ms&wait=20s");
    drop(keeper.lock("warm").unwrap());
    for fault in [
        Fault::DropReplies,
        Fault::CutReplyAfter(0),
        Fault::CutReplyAfter(3),
        Fault::DropRequests,
    ] {
        proxy.once("EVALSHA", fault);
        let guard = keeper.lock("a").unwrap();
        proxy.once("EVALSHA", fault);
        assert_eq!(guard.release().unwrap(), Released::Done, "{fault:?}");
        assert_eq!(left(&server), Vec::<String>::new(), "{fault:?}");
    }
}

#[test]
fn scripts_are_loaded_again() {
    let server = start();
    let keeper = open(&server.url());
    let flush = || server.command(&["SCRIPT", "FLUSH"]).unwrap();
    drop(keeper.lock("a").unwrap());
    flush();
    let guard = keeper.lock("a").unwrap();
    flush();
    guard.renew().unwrap();
    flush();
    assert_eq!(guard.release().unwrap(), Released::Done);
}

/// What is killed, and what the waiter has to do then, is the server's or the network's matter.
fn granted_after(server: &RedisServer, disturb: impl Fn()) {
    let (holder, waiter) = (
        open(&server.url()),
        open(&format!("{}/?wait=30s", server.url())),
    );
    let held = holder.lock("a").unwrap();
    thread::scope(|scope| {
        let granted = scope.spawn(|| waiter.lock("a").map(|guard| guard.token()));
        until("it stands in line", || waiting(server) == 1);
        disturb();
        let first = held.token();
        drop(held);
        assert!(granted.join().unwrap().unwrap() > first);
    });
    until("nothing is left", || left(server).is_empty());
}

#[test]
fn connections_are_killed_while_somebody_waits() {
    let server = start();
    for kind in ["pubsub", "normal"] {
        granted_after(&server, || {
            server.command(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
        });
    }
}

#[test]
fn flushed_while_held_and_waited_for() {
    let server = start();
    granted_after(&server, || {
        server.command(&["FLUSHALL"]).unwrap();
    });
}

#[test]
fn restarted_empty_while_held_and_waited_for() {
    let server = start();
    granted_after(&server, || server.restart().unwrap());
}

#[test]
fn paused_and_asleep_while_waited_for() {
    let server = start();
    granted_after(&server, || {
        server.command(&["CLIENT", "PAUSE", "1500"]).unwrap();
    });
    granted_after(&server, || {
        server.command(&["DEBUG", "SLEEP", "1.5"]).unwrap();
    });
}

#[test]
fn a_dark_server_is_neither_busy_nor_granted() {
    let server = start();
    let keeper = open(&format!(
        "{}/?response_timeout=100ms&connect_timeout=100ms&wait=500ms",
        server.url()
    ));
    drop(keeper.lock("warm").unwrap());
    server.stop().unwrap();
    let began = Instant::now();
    let error = keeper.lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    server.cont().unwrap();
}

#[test]
fn refused_connections_are_unavailable() {
    let server = start();
    let keeper = open(&format!("{}/?wait=300ms", server.url()));
    server.kill();
    // The connection of the pool is closed, and a request on it may have got through.
    let _ = keeper.try_lock("a").unwrap_err();
    for _ in 0..2 {
        let error = keeper.lock("a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    }
    server.restart().unwrap();
    drop(keeper.lock("a").unwrap());
}

#[test]
fn a_waiter_ends_by_its_deadline_when_the_server_goes_dark() {
    let server = start();
    let (holder, waiter) = (
        open(&server.url()),
        open(&format!("{}/?wait=1500ms", server.url())),
    );
    let held = holder.lock("a").unwrap();
    thread::scope(|scope| {
        let began = Instant::now();
        let answer = scope.spawn(|| waiter.lock("a").map(drop));
        until("it stands in line", || waiting(&server) == 1);
        server.stop().unwrap();
        let error = answer.join().unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unknown | ErrorKind::TimedOut),
            "{error:?}"
        );
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        server.cont().unwrap();
    });
    drop(held);
    // The line ends by itself.
    until("nothing is left", || left(&server).is_empty());
}

#[test]
fn somebody_elses_key_is_named_and_not_touched() {
    let server = start();
    server
        .command(&["RPUSH", "lockkeeper:{default:a}", "x"])
        .unwrap();
    let keeper = open(&server.url());
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("another type"), "{error}");
    assert_eq!(
        server
            .command(&["LLEN", "lockkeeper:{default:a}"])
            .unwrap()
            .int(),
        Some(1)
    );
}

#[test]
fn a_pool_that_is_used_up_says_so() {
    let server = start();
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = through(
        &server,
        &proxy,
        "pool_size=1&response_timeout=300ms&wait=10s",
    );
    proxy.set(Fault::Dark);
    let before = proxy.counts().requests;
    thread::scope(|scope| {
        let stuck = scope.spawn(|| keeper.lock("a").map(drop));
        assert!(proxy.wait_for(PATIENCE, |counts| counts.requests > before));
        let mut kinds = Vec::new();
        until("one finds the pool used up", || {
            let error = keeper.try_lock("b").unwrap_err();
            kinds.push(error.kind());
            let exhausted = error.kind() == ErrorKind::PoolExhausted;
            assert!(
                !exhausted || error.to_string().contains("pool_size"),
                "{error}"
            );
            exhausted
        });
        proxy.set(Fault::Pass);
        stuck.join().unwrap().unwrap();
    });
}

#[test]
fn many_renewals_are_few_round_trips() {
    const LEASES: usize = 1000;
    let server = start();
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = through(&server, &proxy, "ttl=6s");
    let guards: Vec<_> = (0..LEASES)
        .map(|number| keeper.lock(format!("name {number}")).unwrap())
        .collect();
    let before = proxy.counts().requests;
    thread::sleep(Duration::from_secs(3));
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    thread::sleep(Duration::from_secs(4));
    assert!(guards.iter().all(lockkeeper_core::LockGuard::is_held));
    let renewals = proxy.counts().requests - before;
    // Three or four rounds; a pipeline may be more than one read of the proxy's.
    assert!(renewals < 100, "{renewals} reads");
    for guard in guards {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
}

#[test]
fn a_late_request_harms_nobody() {
    let server = start();
    let proxy = Proxy::new(server.addr()).unwrap();
    let slow = through(&server, &proxy, "response_timeout=100ms&wait=200ms&ttl=1s");
    let other = open(&format!("{}/?wait=20s", server.url()));
    drop(slow.lock("warm").unwrap());
    proxy.set(Fault::DelayRequests(Duration::from_millis(700)));
    let error = slow.lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    // It gets there now, and nobody is there to hold it: it ends with its ttl.
    let guard = other.lock("a").unwrap();
    assert!(guard.is_held());
    thread::sleep(Duration::from_secs(1));
    let guard = {
        drop(guard);
        other.lock("a").unwrap()
    };
    drop(guard);
    until("nothing is left", || left(&server).is_empty());
}

#[test]
fn one_release_wakes_one_waiter_in_order() {
    let server = start();
    let holder = open(&server.url());
    let waiters: Vec<_> = (0..5)
        .map(|_| open(&format!("{}/?wait=30s", server.url())))
        .collect();
    let held = holder.lock("a").unwrap();
    let (tell, told) = channel();
    thread::scope(|scope| {
        for (number, waiter) in waiters.iter().enumerate() {
            let tell = tell.clone();
            scope.spawn(move || {
                let guard = waiter.lock("a").unwrap();
                tell.send(number).unwrap();
                drop(guard);
            });
            until("it stands in line", || {
                waiting(&server) == i64::try_from(number).unwrap() + 1
            });
        }
        drop(held);
        let order: Vec<_> = told.iter().take(5).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    });
    until("nothing is left", || left(&server).is_empty());
}

#[test]
fn a_fixed_lease_outlives_a_restart_of_nobody() {
    let server = start();
    let keeper = open(&server.url());
    let lease = LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    };
    let options = lockkeeper_core::AcquireOptions::new().lease(lease);
    let guard = keeper.acquire("a", &options).unwrap().unwrap();
    server.restart().unwrap();
    let error = guard.renew().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    let next = keeper.lock("a").unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
}
