//! Requests that arrive after their caller has given up, and clocks that were set.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper::clock::ManualClock;
use lockkeeper::{Config, ErrorKind, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisServer, until};

use super::Case;
use super::store::{EPOCHS_PER_TICK, TICKS_PER_SECOND, epoch_of, keys_left, open, start};
use crate::faults::FaultServer as _;

pub(super) const CASES: &[Case] = &[
    ("request_later_than_wait", request_later_than_wait),
    ("request_later_than_release", request_later_than_release),
    ("server_clock_set", server_clock_set),
    ("server_clock_set_back", server_clock_set_back),
    ("epoch_of_an_earlier_version", epoch_of_an_earlier_version),
];

/// Returns how many scripts the server has run.
fn scripts_run(server: &RedisServer) -> u64 {
    server.calls().unwrap().get("evalsha").copied().unwrap_or(0)
}

fn request_later_than_wait(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=200ms&wait=500ms";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "");
    drop(server.lock_after_waiting(&slow, &rival));
    let before = scripts_run(&server);
    proxy.set(Fault::DelayRequests(Duration::from_millis(1500)));
    let error = slow.lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    let late = proxy.counts().held;
    assert!(late > 0);
    until("the late requests arrive", || {
        scripts_run(&server) >= before + late
    });
    proxy.set(Fault::Pass);
    // The late requests grant nothing.
    assert_eq!(keys_left(&server), Vec::<String>::new());
    drop(rival.try_lock("a").unwrap().expect("it is free"));
    drop(slow.lock("a").unwrap());
    drop((slow, rival));
    server.assert_clean();
}

/// The request is repeated because the first one is delayed. The first one arrives after the release.
fn request_later_than_release(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=200ms&wait=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    drop(keeper.lock("a").unwrap());
    let before = scripts_run(&server);
    proxy.once("EVALSHA", Fault::DelayRequests(Duration::from_secs(2)));
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
    let url = format!("{}/?response_timeout=1s", server.url());
    let config = Config::from_url(&url).unwrap();
    let config = config.clock(Arc::new(ManualClock::new()));
    let keeper = lockkeeper::backend::drivers().open(&config).unwrap();
    for _ in 0..2 {
        let set = Instant::now();
        until("the bound of every earlier request is passed", || {
            set.elapsed() > Duration::from_millis(1200)
        });
        let guard = keeper.try_lock("a").unwrap().expect("it is free");
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    server.assert_clean();
}

/// The last grant of the name has an epoch that is an hour ahead of the server's clock.
fn server_clock_set_back(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let first = epoch_of(&keeper.lock("a").unwrap());
    let last = first / EPOCHS_PER_TICK + 3_600 * TICKS_PER_SECOND;
    let key = "lockkeeper:{default:a}:epoch";
    server.command(&["SET", key, &last.to_string()]).unwrap();
    for grants in 1..=3 {
        let guard = keeper.lock("a").unwrap();
        assert_eq!(epoch_of(&guard), (last + grants) * EPOCHS_PER_TICK);
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    let other = epoch_of(&keeper.lock("b").unwrap());
    assert!(first < other && other < last * EPOCHS_PER_TICK);
    drop(keeper);
    server.assert_clean();
}

/// Earlier versions counted epochs in microseconds.
fn epoch_of_an_earlier_version(kind: RedisKind) {
    let server = start(kind);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let earlier = u64::try_from(now().as_micros()).unwrap();
    let key = "lockkeeper:{default:a}:epoch";
    server.command(&["SET", key, &earlier.to_string()]).unwrap();
    let before = now().as_secs();
    let epoch = epoch_of(&open(&server.url(), "").lock("a").unwrap());
    assert!(epoch > earlier);
    // In units of 2^-24 s, as the epochs of all stores.
    assert!((before..=now().as_secs()).contains(&(epoch >> 24)));
    server.assert_clean();
}
