//! What a keeper costs the server, and the error of an exhausted pool.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{AcquireOptions, ErrorKind, LockGuard, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer, cases, until};

use super::Case;
use super::store::{open, start, waiting_at};
use crate::common::{Keepers as _, Told, WAIT_LIMIT, cancel_after, with_reply_time};

pub(super) const CASES: &[Case] = cases![
    exhausted_pool_has_its_own_error,
    renewals_are_sent_in_batches,
    cancelled_waits_leave_no_waiter,
];

fn exhausted_pool_has_its_own_error(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("s3cret")).unwrap();
    let proxy = Proxy::new(server.addr()).unwrap();
    // In the dark, a login takes the pool's only connection for far longer than other calls wait for it.
    let keys = "pool_size=1&response_timeout=200ms&connect_timeout=20s&wait=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    proxy.set(Fault::Dark);
    let before = proxy.counts().accepted;
    thread::scope(|scope| {
        let stuck = scope.spawn(|| keeper.lock("a").map(drop));
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.accepted > before));
        let error = keeper.try_lock("b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error:?}");
        assert!(error.to_string().contains("pool_size"), "{error}");
        proxy.set(Fault::Pass);
        stuck.join().unwrap().unwrap();
    });
    drop(keeper);
    server.assert_clean();
}

fn renewals_are_sent_in_batches(kind: RedisKind) {
    const LEASES: usize = 300;
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = open(&server.url_via(proxy.addr()), "ttl=8s");
    let guards: Vec<_> = (0..LEASES)
        .map(|number| keeper.lock(format!("name {number}")).unwrap())
        .collect();
    let before = proxy.counts().requests;
    // The next batch of renewals finds no script.
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    let began = Instant::now();
    until("the ttl is over", || {
        began.elapsed() > Duration::from_secs(9)
    });
    assert!(guards.iter().all(LockGuard::is_held));
    let renewals = proxy.counts().requests - before;
    // Three or four batches; the proxy may count several reads for a batch.
    assert!(renewals < 100, "{renewals} reads");
    for guard in guards {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    server.assert_clean();
}

/// Each of them is cancelled at another moment, many while a request is under way. None of that is an outage.
fn cancelled_waits_leave_no_waiter(kind: RedisKind) {
    let server = start(kind);
    let holder = open(&server.url(), "ttl=60s");
    let url = with_reply_time(&format!("{}/?ttl=60s", server.url()));
    let (keeper, told) = Told::open(&url);
    let held = holder.lock("a").unwrap();
    for round in 0..150 {
        cancel_after(&keeper, "a", AcquireOptions::new(), || {
            thread::sleep(Duration::from_micros(round * 37 % 1_500));
        });
    }
    assert_eq!(waiting_at(&server, "lockkeeper:{default:a}"), 0);
    assert_eq!(told.counts(), [0, 0]);
    held.release().unwrap();
    drop((keeper, holder));
    server.assert_clean();
}
