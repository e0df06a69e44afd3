//! A quorum of five servers, of which two are killed, two are cut off, or some restart empty.

use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, WaitOutcome};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisServer, cases, until};

use super::Case;
use super::store::{keys_left, start};
use crate::common::{WAIT_LIMIT, opened, refused};

pub(super) const CASES: &[Case] = cases![
    quorum_grants_go_on_while_a_member_is_slow,
    quorum_counts_a_server_once,
    quorum_keeps_many_leases,
    quorum_outlives_two_killed,
    quorum_outlives_two_cut_off,
    quorum_regains_members_that_restarted_empty,
    quorum_member_that_restarted_empty_is_no_vote,
];

/// Opens a keeper whose members grant nothing for 5 s after their start: a busy machine renews late.
fn open(urls: &[String]) -> LockKeeper {
    let members: Vec<_> = urls.iter().map(|url| format!("member={url}")).collect();
    let keys = "ttl=5s&restart_grace=5s&wait=60s";
    lockkeeper::open(&format!("quorum:?{}&{keys}", members.join("&"))).unwrap()
}

fn five(kind: RedisKind) -> (Vec<RedisServer>, Vec<String>) {
    let servers: Vec<_> = (0..5).map(|_| start(kind)).collect();
    until("all members grant", || {
        servers.iter().all(|server| {
            let info = server.info("server").unwrap();
            let uptime = info.get("uptime_in_seconds");
            uptime.is_some_and(|uptime| uptime.parse::<u64>().unwrap() >= 6)
        })
    });
    let urls = servers.iter().map(RedisServer::url).collect();
    (servers, urls)
}

/// Locks `a` and gives it back; its token is larger than `last`. Returns it.
fn pass(keeper: &LockKeeper, last: u64) -> u64 {
    let guard = keeper.lock("a").unwrap();
    let token = guard.token().get();
    assert!(token > last, "the token {token} comes after {last}");
    guard.release().unwrap();
    token
}

/// Locks `b`, and waits for the members that the majority did not wait for.
fn lock_everywhere(keeper: &LockKeeper, servers: &[RedisServer]) -> LockGuard {
    let guard = keeper.lock("b").unwrap();
    until("all members have granted it", || {
        servers.iter().all(|server| keys_left(server).len() == 1)
    });
    guard
}

fn assert_excludes(guard: &LockGuard, other: &LockKeeper) {
    // On a busy machine, a member may answer later than a renewal waits for it.
    until("a majority renews the lease", || match guard.renew() {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            false
        }
    });
    assert!(other.try_lock(guard.name()).unwrap().is_none());
    guard.ensure_held().unwrap();
}

fn quorum_outlives_two_killed(kind: RedisKind) {
    let (servers, urls) = five(kind);
    let (keeper, other) = (open(&urls), open(&urls));
    let mut token = pass(&keeper, 0);
    let guard = lock_everywhere(&keeper, &servers);
    servers[0].kill();
    servers[3].kill();
    assert_excludes(&guard, &other);
    for keeper in [&keeper, &other, &open(&urls)] {
        token = pass(keeper, token);
    }
    servers[4].kill();
    let error = other.try_lock("c").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    until("the guard is lost", || guard.ensure_held().is_err());
    servers[0].restart().unwrap();
    // The member votes when its grace is over, and the wait lasts until then.
    pass(&other, token);
}

fn quorum_outlives_two_cut_off(kind: RedisKind) {
    let (servers, _) = five(kind);
    let proxies: Vec<_> = servers
        .iter()
        .map(|it| Proxy::new(it.addr()).unwrap())
        .collect();
    let via = servers.iter().zip(&proxies);
    let urls: Vec<_> = via.map(|(it, proxy)| it.url_via(proxy.addr())).collect();
    let (keeper, other) = (open(&urls), open(&urls));
    let mut token = pass(&keeper, 0);
    let guard = lock_everywhere(&keeper, &servers);
    proxies[1].set(Fault::Dark);
    proxies[2].set(Fault::Dark);
    assert_excludes(&guard, &other);
    for keeper in [&keeper, &other, &keeper] {
        token = pass(keeper, token);
    }
    guard.release().unwrap();
    for proxy in &proxies {
        proxy.set(Fault::Pass);
    }
    pass(&keeper, token);
    // What was left at the members that were cut off is released, or ends with its ttl.
    until("no key is left", || {
        servers.iter().all(|it| keys_left(it).is_empty())
    });
}

fn quorum_regains_members_that_restarted_empty(kind: RedisKind) {
    let (servers, urls) = five(kind);
    let (keeper, other) = (open(&urls), open(&urls));
    let guard = lock_everywhere(&keeper, &servers);
    // More members than may fail at the same time.
    for server in &servers[..3] {
        server.restart().unwrap();
        // The member grants nothing until its grace is over.
        until("the member has the lease again", || {
            keys_left(server).len() == 1
        });
    }
    assert_excludes(&guard, &other);
    guard.release().unwrap();
    until("no key is left", || {
        servers.iter().all(|it| keys_left(it).is_empty())
    });
}

fn quorum_member_that_restarted_empty_is_no_vote(kind: RedisKind) {
    let (servers, urls) = five(kind);
    let (keeper, other) = (open(&urls), open(&urls));
    let guard = keeper.lock("b").unwrap();
    servers[0].restart().unwrap();
    assert_excludes(&guard, &other);
    // Now a majority has forgotten the lock, and grants nothing until the guard is lost.
    servers[1].restart().unwrap();
    servers[2].restart().unwrap();
    let later = other.lock("b").unwrap();
    assert!(guard.ensure_held().is_err());
    assert!(later.token() > guard.token());
}

fn three(kind: RedisKind) -> (Vec<RedisServer>, Vec<Proxy>) {
    let servers: Vec<_> = (0..3).map(|_| start(kind)).collect();
    let proxy = |server: &RedisServer| Proxy::new(server.addr()).unwrap();
    let proxies = servers.iter().map(proxy).collect();
    (servers, proxies)
}

fn via(servers: &[RedisServer], proxies: &[Proxy]) -> Vec<String> {
    let via = servers.iter().zip(proxies);
    via.map(|(it, proxy)| it.url_via(proxy.addr())).collect()
}

/// Opens a keeper when the grace of servers that have just started is over.
fn open_with(urls: &[String], keys: &str) -> LockKeeper {
    let members: Vec<_> = urls.iter().map(|url| format!("member={url}")).collect();
    opened(&format!("quorum:?{}&{keys}", members.join("&")))
}

/// Two callers that began at different members used to give way to each other forever.
fn quorum_grants_go_on_while_a_member_is_slow(kind: RedisKind) {
    let (servers, proxies) = three(kind);
    let urls = via(&servers, &proxies);
    let keepers = [(); 3].map(|()| open_with(&urls, "ttl=2s&wait=60s"));
    drop(keepers[0].lock("a").unwrap());
    for slow in &proxies {
        slow.set(Fault::DelayReplies(Duration::from_millis(300)));
        thread::scope(|scope| {
            for keeper in &keepers {
                scope.spawn(|| {
                    for _ in 0..3 {
                        drop(keeper.lock("a").unwrap());
                    }
                });
            }
        });
        slow.set(Fault::Pass);
    }
}

fn quorum_counts_a_server_once(kind: RedisKind) {
    let (servers, _) = three(kind);
    let [one, other] = [&servers[0], &servers[1]];
    let by_name = format!("redis://localhost:{}/", one.addr().port());
    for twice in [by_name, format!("{}/1", one.url().trim_end_matches('/'))] {
        let members = [one.url(), other.url(), twice].map(|url| format!("member={url}"));
        let url = format!("quorum:?{}", members.join("&"));
        refused(&url, ErrorKind::InvalidValue, &["one vote"]);
    }
}

/// A round trip takes 20 ms.
fn quorum_keeps_many_leases(kind: RedisKind) {
    const LEASES: usize = 400;
    const THREADS: usize = 50;
    let (servers, proxies) = three(kind);
    let keeper = open_with(&via(&servers, &proxies), "ttl=6s&wait=60s");
    drop(keeper.lock("first").unwrap());
    for proxy in &proxies {
        proxy.set(Fault::DelayReplies(Duration::from_millis(20)));
    }
    let held: Vec<_> = thread::scope(|scope| {
        let some = |at: usize| {
            let keeper = &keeper;
            let names = (at..LEASES)
                .step_by(THREADS)
                .map(|number| format!("held-{number}"));
            scope.spawn(move || {
                names
                    .map(|name| keeper.lock(name).unwrap())
                    .collect::<Vec<_>>()
            })
        };
        let all: Vec<_> = (0..THREADS).map(some).collect();
        all.into_iter().flat_map(|it| it.join().unwrap()).collect()
    });
    let ttl = Duration::from_secs(6);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let last = keeper.acquire("last", &fixed).unwrap().unwrap();
    assert_eq!(last.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let lost = held.iter().filter(|it| !it.is_held()).count();
    assert_eq!(lost, 0, "of {LEASES} leases");
}
