//! Requests that arrive after their caller has given up, and clocks that were set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::clock::{Clock, ManualClock, SystemClock};
use lockkeeper::{Config, LockGuard, LockKeeper, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisServer, Reply, cases, until};

use super::Case;
use super::store::{EPOCH_KEY, epoch_at, epoch_of, keys_left, last_minted, open, start};
use crate::common::{Keepers as _, WAIT_LIMIT};

pub(super) const CASES: &[Case] = cases![
    request_later_than_release,
    server_clock_set,
    server_clock_set_back,
    names_used_once_leave_one_key,
];

/// Returns how many scripts the server has run.
fn scripts_run(server: &RedisServer) -> u64 {
    server.calls().unwrap().get("evalsha").copied().unwrap_or(0)
}

/// The request is repeated because the first one is delayed. The first one arrives after the release.
fn request_later_than_release(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=2s&wait=30s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    keeper.lock("a").unwrap().release().unwrap();
    let before = scripts_run(&server);
    proxy.once("EVALSHA", Fault::DelayRequests(Duration::from_secs(8)));
    let guard = keeper.lock("a").unwrap();
    assert_eq!(guard.release().unwrap(), Released::Done);
    until("all three requests arrive", || {
        scripts_run(&server) >= before + 3
    });
    assert_eq!(keys_left(&server), Vec::<String>::new());
    drop(keeper.try_lock("a").unwrap().expect("it is free"));
    drop(keeper);
    server.assert_clean();
}

/// To a keeper whose own clock stands still, the server's clock leaps.
fn server_clock_set(kind: RedisKind) {
    let server = start(kind);
    // A request says that it is of use for this long.
    let url = format!("{}/?response_timeout=3s", server.url());
    let config = Config::from_url(&url).unwrap();
    let config = config.clock(Arc::new(ManualClock::new()));
    let keeper = lockkeeper::backend::drivers().open(&config).unwrap();
    for _ in 0..2 {
        let set = Instant::now();
        until("the bound of every earlier request is passed", || {
            set.elapsed() > Duration::from_millis(3_200)
        });
        let guard = keeper.try_lock("a").unwrap().expect("it is free");
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    server.assert_clean();
}

/// The last grant of the namespace has an epoch that is an hour ahead of the server's clock.
fn server_clock_set_back(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    drop(keeper.lock("a").unwrap());
    // A second that the server writes with few digits, and microseconds that it writes with one.
    let last = last_minted(&server) / 1_000_000 + 3_600;
    let last = last * 1_000_000 - 2;
    server
        .command(&["SET", EPOCH_KEY, &last.to_string()])
        .unwrap();
    for (name, grants) in ["a", "a", "b", "a", "b"].into_iter().zip(1..) {
        let guard = keeper.lock(name).unwrap();
        // A grant whose reply came too late on a busy machine is given back, and has an epoch, too.
        let minted = last_minted(&server);
        assert!(minted >= last + grants);
        assert_eq!(epoch_of(&guard), epoch_at(minted));
        assert_eq!(shown_epoch(&keeper, &guard), Some(epoch_of(&guard)));
        until("it is renewed", || guard.renew().is_ok());
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    server.assert_clean();
}

/// Returns the epoch that `who` shows of a held lock.
fn shown_epoch(keeper: &LockKeeper, guard: &LockGuard) -> Option<u64> {
    let admin = keeper.admin().unwrap();
    let soon = SystemClock.now() + WAIT_LIMIT;
    let held = admin.held(Some(guard.name()), soon).unwrap();
    held.first().unwrap().epoch
}

fn names_used_once_leave_one_key(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    for name in 0..100 {
        drop(keeper.lock(format!("name {name}")).unwrap());
    }
    drop(keeper);
    server.assert_clean();
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys: Vec<_> = keys.items().iter().filter_map(Reply::text).collect();
    assert_eq!(keys, [EPOCH_KEY]);
    // A lock may live for any time.
    assert_eq!(
        server.command(&["PTTL", EPOCH_KEY]).unwrap().int(),
        Some(-1)
    );
}
