//! A quorum of five servers, of which two are killed, two are cut off, or some restart empty.

use lockkeeper::{ErrorKind, LockGuard, LockKeeper};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisServer, until};

use super::Case;
use super::store::{keys_left, start};

pub(super) const CASES: &[Case] = &[
    ("quorum_outlives_two_killed", quorum_outlives_two_killed),
    ("quorum_outlives_two_cut_off", quorum_outlives_two_cut_off),
    (
        "quorum_regains_members_that_restarted_empty",
        quorum_regains_members_that_restarted_empty,
    ),
    (
        "quorum_member_that_restarted_empty_is_no_vote",
        quorum_member_that_restarted_empty_is_no_vote,
    ),
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
