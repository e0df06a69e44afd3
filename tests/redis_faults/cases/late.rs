//! Requests and replies that come when nobody waits for them any more.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{Config, ErrorKind, LockGuard, ManualClock, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisServer};

use super::Case;
use super::rig::{left, open, settled, start};
use crate::rig::{PATIENCE, Witness, until};

pub(super) const CASES: &[Case] = &[
    ("reply_later_than_the_ttl", reply_later_than_the_ttl),
    ("request_later_than_the_wait", request_later_than_the_wait),
    (
        "request_later_than_the_release",
        request_later_than_the_release,
    ),
    ("clock_of_the_server_was_set", clock_of_the_server_was_set),
    (
        "clock_of_the_server_was_set_back",
        clock_of_the_server_was_set_back,
    ),
];

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

/// How many requests for a lock have been carried out there.
fn arrived(server: &RedisServer) -> u64 {
    server.calls().unwrap().get("evalsha").copied().unwrap_or(0)
}

fn request_later_than_the_wait(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=200ms&wait=500ms";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "");
    drop(slow.lock("a").unwrap());
    let before = arrived(&server);
    proxy.set(Fault::DelayRequests(Duration::from_millis(1500)));
    let error = slow.lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    let late = proxy.counts().held;
    assert!(late > 0);
    until("they arrive", || arrived(&server) >= before + late);
    proxy.set(Fault::Pass);
    // Nobody was there to hold it, so nobody does, for none of the ttl.
    assert_eq!(left(&server), Vec::<String>::new());
    drop(rival.try_lock("a").unwrap().expect("it is free"));
    drop(slow.lock("a").unwrap());
    drop((slow, rival));
    settled(&server);
}

/// Asked twice since the first request did not get through, granted and given back; and then the
/// first one gets through.
fn request_later_than_the_release(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=200ms&wait=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    drop(keeper.lock("a").unwrap());
    let before = arrived(&server);
    proxy.once("EVALSHA", Fault::DelayRequests(Duration::from_secs(2)));
    let guard = keeper.lock("a").unwrap();
    assert_eq!(guard.release().unwrap(), Released::Done);
    until("all three arrive", || arrived(&server) >= before + 3);
    assert_eq!(left(&server), Vec::<String>::new());
    drop(keeper.try_lock("a").unwrap().expect("it is free"));
    drop(keeper);
    settled(&server);
}

/// As good as that: the keeper's own clock stands still, so to it the server's leaps.
fn clock_of_the_server_was_set(kind: RedisKind) {
    let server = start(kind);
    // Each request is to be there within that.
    let url = format!("{}/?response_timeout=1s", server.url());
    let config = Config::from_url(&url).unwrap();
    let config = config.clock(Arc::new(ManualClock::new()));
    let keeper = lockkeeper::drivers().open(&config).unwrap();
    for _ in 0..2 {
        let set = Instant::now();
        until("every bound is passed", || {
            set.elapsed() > Duration::from_millis(1200)
        });
        let guard = keeper.try_lock("a").unwrap().expect("it is free");
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    settled(&server);
}

/// As good as that: the last grant of the name was an hour later.
fn clock_of_the_server_was_set_back(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let first = keeper.lock("a").unwrap().token().get() >> 7;
    let last = first + 3_600_000_000;
    let key = "lockkeeper:{default:a}:epoch";
    server.command(&["SET", key, &last.to_string()]).unwrap();
    for grants in 1..=3 {
        let guard = keeper.lock("a").unwrap();
        assert_eq!(guard.token().get() >> 7, last + grants);
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    let other = keeper.lock("b").unwrap().token().get() >> 7;
    assert!(first < other && other < last);
    drop(keeper);
    settled(&server);
}
