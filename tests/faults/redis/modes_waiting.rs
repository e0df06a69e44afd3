//! The order in which waiters of different modes are granted a name, and who wakes whom.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockkeeper::backend::{AcquireRequest, Backend};
use lockkeeper::backends::redis::RedisProvider;
use lockkeeper::clock::SystemClock;
use lockkeeper::{AcquireOptions, Error, ErrorKind, LockGuard, LockKeeper, Mode, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisClient, RedisKind, RedisServer, Reply, until};

use super::Case;
use super::operations::{Lease, TTL, names, open_with_scripts, release_all};
use super::store::{keys_left, open, start, waiting_at};
use crate::common::Keepers as _;
use crate::common::contended::SetOnDrop;

pub(super) const CASES: &[Case] = &[
    ("waiters_in_order", waiters_in_order),
    ("readers_behind_a_writer_together", |kind| {
        granted_together(kind, LOCK, Mode::Exclusive, [Mode::Shared; 5]);
    }),
    ("waiters_for_permits_together", |kind| {
        let permit = Mode::Permit { limit: 3 };
        granted_together(kind, PERMITS, permit, [permit; 3]);
    }),
    ("waiter_meets_another_limit", waiter_meets_another_limit),
    (
        "waiter_far_away_is_granted_beside_others",
        waiter_far_away_is_granted_beside_others,
    ),
];

const LOCK: &str = "lockkeeper:{default:a}";
/// The delay of replies to a waiter far away.
const FAR: Duration = Duration::from_millis(200);
const PERMITS: &str = "lockkeeper:{default:a}:permits";

fn try_acquire(provider: &RedisProvider, mode: Mode) -> Option<Lease> {
    let [a] = names(["a"]);
    let request = AcquireRequest::attempt(&a, TTL, &SystemClock).with_mode(mode);
    let grant = provider.acquire(&request).unwrap();
    grant.map(|grant| grant.lease)
}

#[track_caller]
fn granted(provider: &RedisProvider, mode: Mode) -> Lease {
    try_acquire(provider, mode).expect("it can be granted")
}

type Waiting = JoinHandle<Result<(LockGuard, LockKeeper), Error>>;

/// Starts a keeper that waits for `a`, and returns when it is queued.
fn start_waiter(server: &RedisServer, key: &str, mode: Mode) -> Waiting {
    let before = waiting_at(server, key);
    let keeper = open(&server.url(), "wait=60s&ttl=60s");
    let waiting = thread::spawn(move || {
        let options = AcquireOptions::new().mode(mode);
        let guard = keeper.acquire("a", &options)?;
        Ok((guard.expect("it waits long enough"), keeper))
    });
    until("the waiter is queued", || {
        waiting_at(server, key) == before + 1
    });
    waiting
}

fn guard(waiting: Waiting) -> (LockGuard, LockKeeper) {
    waiting.join().unwrap().unwrap()
}

fn release(guard: LockGuard) {
    assert_eq!(guard.release().unwrap(), Released::Done);
}

/// A reader that comes after a writer waits behind it, also if it could be granted the name at once.
fn waiters_in_order(kind: RedisKind) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    let readers = [(); 2].map(|()| granted(&provider, Mode::Shared));
    let waiters = ["idle.1.x", "idle.2.s", "idle.3.x"];
    let mut process = queue_idle_waiters(&server, LOCK, &waiters);
    let mut told = || {
        let message = process.receive().unwrap();
        message.items().last().and_then(Reply::text)
    };
    assert!(try_acquire(&provider, Mode::Shared).is_none());
    // The process is asked whether the one that keeps the reader out still waits.
    assert_eq!(told(), Some(format!("{}? {LOCK}", waiters[0])));
    release_all(&provider, readers);
    for (waiter, left) in waiters.into_iter().zip([2, 1, 0]) {
        // Each but the first is woken in place of one that did not come.
        until("the next one is woken", || {
            assert!(try_acquire(&provider, Mode::Shared).is_none());
            waiting_at(&server, LOCK) <= left
        });
        assert_eq!(told(), Some(format!("{waiter} {LOCK}")));
    }
    until("the last one has not come either", || {
        let grant = try_acquire(&provider, Mode::Shared);
        let is_granted = grant.is_some();
        release_all(&provider, grant);
        is_granted
    });
    assert_eq!(keys_left(&server), Vec::<String>::new());
}

/// One release lets all waiters in, each of which wakes the next one.
fn granted_together<const N: usize>(kind: RedisKind, key: &str, held: Mode, waiters: [Mode; N]) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    let mut holders = Vec::new();
    while let Some(lease) = try_acquire(&provider, held) {
        holders.push(lease);
    }
    let waiters = waiters.map(|mode| start_waiter(&server, key, mode));
    let woken = || server.calls().unwrap().get("publish").copied();
    let before = woken().unwrap_or(0);
    release_all(&provider, holders);
    // None of them is released before all are granted.
    let held = waiters.map(guard);
    assert!(held.iter().all(|(guard, _)| guard.is_held()));
    assert!(woken().unwrap() >= before + N as u64);
    drop((held, provider));
    server.assert_clean();
}

/// Queues waiters of a process that listens and does nothing else, before all others.
fn queue_idle_waiters(server: &RedisServer, key: &str, waiters: &[&str]) -> RedisClient {
    let mut process = server.client().unwrap();
    let channel = ["SUBSCRIBE", "lockkeeper:wake:idle"];
    process.command(&channel).unwrap();
    for (waiter, number) in waiters.iter().zip(0_i64..) {
        let score = (number - 9_007_199_254_740_000).to_string();
        let queued = ["ZADD", key, &score, waiter];
        assert_eq!(server.command(&queued).unwrap().int(), Some(1));
    }
    process
}

/// Permits of two limits are waited for while none is held.
fn waiter_meets_another_limit(kind: RedisKind) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    let first = granted(&provider, Mode::Permit { limit: 1 });
    let one = start_waiter(&server, PERMITS, Mode::Permit { limit: 1 });
    // For the time being, the semaphore is reserved for a waiter that does not come.
    let far = "9000000000000";
    server
        .command(&["ZADD", PERMITS, far, "kept idle.1./1"])
        .unwrap();
    release_all(&provider, [first]);
    let other = start_waiter(&server, PERMITS, Mode::Permit { limit: 2 });
    server
        .command(&["ZREM", PERMITS, "kept idle.1./1"])
        .unwrap();
    // The first one is granted, unless it takes too long to come.
    let (mut held, mut refused) = (Vec::new(), Vec::new());
    for answer in [one, other].map(|waiting| waiting.join().unwrap()) {
        match answer {
            Ok(guard) => held.push(guard),
            Err(error) => refused.push(error.kind()),
        }
    }
    assert_eq!(refused, [ErrorKind::LimitMismatch]);
    let (guard, _keeper) = held.pop().unwrap();
    release(guard);
    assert_eq!(keys_left(&server), Vec::<String>::new());
}

/// Others ask sooner than the message that wakes it reaches it, and each of them holds the name for longer than that.
fn waiter_far_away_is_granted_beside_others(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let far = open(&server.url_via(proxy.addr()), "wait=60s");
    let near = [(); 2].map(|()| open(&server.url(), "wait=60s"));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for keeper in &near {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let _guard = keeper.lock("a").unwrap();
                    thread::sleep(2 * FAR);
                }
            });
        }
        let _end = SetOnDrop(&ended);
        proxy.set(Fault::DelayReplies(FAR));
        assert!(far.lock("a").is_ok());
    });
}
