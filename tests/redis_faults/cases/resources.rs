//! What a keeper takes of the server, and what it says when that is not enough.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, LockGuard, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer};

use super::Case;
use super::rig::{open, settled, start};
use crate::rig::{PATIENCE, until};

pub(super) const CASES: &[Case] = &[
    ("pool_that_is_used_up_says_so", pool_that_is_used_up_says_so),
    (
        "many_renewals_are_few_round_trips",
        many_renewals_are_few_round_trips,
    ),
];

fn pool_that_is_used_up_says_so(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("s3cret")).unwrap();
    let proxy = Proxy::new(server.addr()).unwrap();
    // Who connects in the dark waits for its login, with the only place of the pool, far longer than
    // others wait for that.
    let keys = "pool_size=1&response_timeout=200ms&connect_timeout=20s&wait=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    proxy.set(Fault::Dark);
    let before = proxy.counts().accepted;
    thread::scope(|scope| {
        let stuck = scope.spawn(|| keeper.lock("a").map(drop));
        assert!(proxy.wait_for(PATIENCE, |counts| counts.accepted > before));
        let error = keeper.try_lock("b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error:?}");
        assert!(error.to_string().contains("pool_size"), "{error}");
        proxy.set(Fault::Pass);
        stuck.join().unwrap().unwrap();
    });
    drop(keeper);
    settled(&server);
}

fn many_renewals_are_few_round_trips(kind: RedisKind) {
    const LEASES: usize = 1000;
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = open(&server.url_via(proxy.addr()), "ttl=6s");
    let guards: Vec<_> = (0..LEASES)
        .map(|number| keeper.lock(format!("name {number}")).unwrap())
        .collect();
    let before = proxy.counts().requests;
    // The next pipeline finds no script.
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    let began = Instant::now();
    until("the ttl is over", || {
        began.elapsed() > Duration::from_secs(7)
    });
    assert!(guards.iter().all(LockGuard::is_held));
    let renewals = proxy.counts().requests - before;
    // Three or four rounds; a pipeline may be more than one read of the proxy's.
    assert!(renewals < 100, "{renewals} reads");
    for guard in guards {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    settled(&server);
}
