//! Operations that are sent together. Each has its own answer, also after a failure of the transport.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper::backend::{AcquireRequest, Backend};
use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper::clock::{Clock, ManualClock, SystemClock};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, cases, until};

use super::Case;
use super::operations::Answer::{AlreadyLost, Busy, Failed, Granted, Lost, Released, Renewed};
use super::operations::{
    TTL, acquire, attempt, attempt_until, end, names, open, open_via, open_with_scripts, release,
    release_all, renew, request, run, sent,
};
use super::store::{keys_left, start};
use crate::common::{Keepers as _, WAIT_LIMIT, assert_closed};

pub(super) const CASES: &[Case] = cases![
    batch_without_scripts,
    batch_cut_before_replies,
    batch_cut_within_replies,
    batch_with_late_attempt,
    batch_with_unknown_clock,
    batch_in_restart_grace,
    batch_needs_replicas,
    batch_of_attempts_leaves_one_connection,
];

/// Only what found no script is asked again.
fn batch_without_scripts(kind: RedisKind) {
    let server = start(kind);
    let provider = open(&server, |options| options);
    let [mut one, mut two, mut three, mut four] = acquire(&provider, ["1", "2", "3", "4"]);
    for knows_attempts in [false, true] {
        server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
        let more = knows_attempts.then(|| acquire(&provider, ["5"]));
        let names = names(["a", "b"]);
        let requests = names.each_ref().map(request);
        let before = sent(&provider);
        let [a, b] = requests.each_ref().map(attempt);
        let batch = vec![
            a,
            renew(&mut one),
            b,
            renew(&mut two),
            release(&mut three),
            release(&mut four),
        ];
        let (answers, grants) = run(&provider, batch);
        let (released, again) = match knows_attempts {
            false => (Released, 6),
            true => (AlreadyLost, 4),
        };
        let expected = [Granted, Renewed, Granted, Renewed, released, released];
        assert_eq!(answers, expected);
        assert_eq!(sent(&provider), before + 6 + again);
        release_all(&provider, grants.into_iter().map(|grant| grant.lease));
        release_all(&provider, more.into_iter().flatten());
    }
    release_all(&provider, [one, two]);
    provider.batch(&mut []);
    drop(provider);
    server.assert_clean();
}

fn batch_cut_before_replies(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = open_with_scripts(proxy.addr(), |options| options);
    let [mut kept, mut freed] = acquire(&provider, ["k", "f"]);
    let [a] = names(["a"]);
    let asked = request(&a);
    proxy.once("EVALSHA", Fault::CutReplyAfter(0));
    let batch = vec![attempt(&asked), renew(&mut kept), release(&mut freed)];
    let (answers, _) = run(&provider, batch);
    // The renewal was sent again, which does no harm.
    assert_eq!(
        answers,
        [
            Failed(ErrorKind::Unknown),
            Renewed,
            Failed(ErrorKind::Unknown),
        ]
    );
    // The server has carried them out, and the same owner is granted the name again.
    let batch = vec![attempt(&asked), renew(&mut kept), release(&mut freed)];
    let (answers, mut grants) = run(&provider, batch);
    assert_eq!(answers, [Granted, Renewed, AlreadyLost,]);
    let mut granted = grants.pop().unwrap().lease;
    // Without a server, nothing can have been granted.
    proxy.refuse();
    assert_closed(&proxy);
    let [b] = names(["b"]);
    let other = request(&b);
    let mut fails = || {
        let batch = vec![attempt(&other), renew(&mut kept), release(&mut granted)];
        let (answers, _) = run(&provider, batch);
        answers == [(); 3].map(|()| Failed(ErrorKind::Unavailable))
    };
    // On a busy machine, the client may not have noticed the cut, and then sends the first requests.
    assert!(fails() || fails());
    proxy.accept().unwrap();
    release_all(&provider, [kept, granted]);
    drop(provider);
    server.assert_clean();
    assert_closed(&proxy);
}

/// The operations whose replies have come have these as their answers.
fn batch_cut_within_replies(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let [provider, rival] =
        [proxy.addr(), server.addr()].map(|addr| open_with_scripts(addr, |options| options));
    let [mut freed, mut later] = acquire(&provider, ["f", "l"]);
    let [others] = acquire(&rival, ["b"]);
    let names = names(["b", "c"]);
    let [busy, free] = names.each_ref().map(request);
    // `:1` and its line end are the reply of the first release, and one byte of the next.
    proxy.once("EVALSHA", Fault::CutReplyAfter(5));
    let batch = vec![
        release(&mut freed),
        attempt(&busy),
        attempt(&free),
        release(&mut later),
    ];
    let (answers, _) = run(&provider, batch);
    assert_eq!(
        answers,
        [
            Released,
            Failed(ErrorKind::Unknown),
            Failed(ErrorKind::Unknown),
            Failed(ErrorKind::Unknown),
        ]
    );
    let batch = vec![attempt(&busy), attempt(&free), release(&mut later)];
    let (answers, mut grants) = run(&provider, batch);
    assert_eq!(answers, [Busy, Granted, AlreadyLost]);
    release_all(&provider, grants.pop().map(|grant| grant.lease));
    release_all(&rival, [others]);
    drop((provider, rival));
    server.assert_clean();
}

/// The request is late for one caller, and in time for another.
fn batch_with_late_attempt(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = open_via(proxy.addr(), |options| options.response_timeout(WAIT_LIMIT));
    let [mut kept] = acquire(&provider, ["k"]);
    let names = names(["late", "in time"]);
    let [late, other] = names.each_ref().map(request);
    let soon = SystemClock.now() + Duration::from_millis(200);
    proxy.once("EVALSHA", Fault::DelayRequests(Duration::from_secs(1)));
    let batch = vec![
        attempt_until(&late, soon),
        renew(&mut kept),
        attempt(&other),
    ];
    let (answers, mut grants) = run(&provider, batch);
    assert_eq!(answers, [Failed(ErrorKind::Unavailable), Renewed, Granted,]);
    let keys = ["lockkeeper:{default:in%20time}", "lockkeeper:{default:k}"];
    let mut left = keys_left(&server);
    left.sort();
    assert_eq!(left, keys);
    release_all(&provider, [kept, grants.pop().unwrap().lease]);
    drop(provider);
    server.assert_clean();
}

/// The server's clock is not what the provider knows of it, as after a fail-over.
fn batch_with_unknown_clock(kind: RedisKind) {
    let server = start(kind);
    // A clock that stands still: to its provider the server's clock leaps.
    let clock = ManualClock::new();
    let options = RedisOptions::tcp(server.addr().ip().to_string(), server.addr().port());
    let options = options.response_timeout(Duration::from_secs(2));
    let provider = RedisProvider::with_clock(&options, "default", Arc::new(clock.clone())).unwrap();
    let names = names(["a", "b"]);
    let requests = names
        .each_ref()
        .map(|name| AcquireRequest::attempt(name, TTL, &clock));
    // The server has the script.
    let [loaded] = self::names(["s"]);
    let loading = AcquireRequest::attempt(&loaded, TTL, &clock);
    let loaded = provider.acquire(&loading).unwrap().unwrap().lease;
    release_all(&provider, [loaded]);
    let began = Instant::now();
    until("the bound of every earlier request is passed", || {
        began.elapsed() > Duration::from_millis(2_200)
    });
    let before = sent(&provider);
    let later = clock.now() + WAIT_LIMIT;
    let [a, b] = requests
        .each_ref()
        .map(|request| attempt_until(request, later));
    let (answers, grants) = run(&provider, vec![a, b]);
    assert_eq!(answers, [Granted, Granted]);
    assert_eq!(sent(&provider), before + 4);
    release_all(&provider, grants.into_iter().map(|grant| grant.lease));
    drop(provider);
    server.assert_clean();
}

/// Nothing is granted, and what was granted before is renewed and released.
fn batch_in_restart_grace(kind: RedisKind) {
    let server = start(kind);
    let earlier = open(&server, |options| options);
    let [mut kept, mut freed] = acquire(&earlier, ["k", "f"]);
    let provider = open(&server, |options| options.restart_grace(TTL * 60));
    let [a] = names(["a"]);
    let asked = request(&a);
    let batch = vec![attempt(&asked), renew(&mut kept), release(&mut freed)];
    let (answers, _) = run(&provider, batch);
    assert_eq!(
        answers,
        [Failed(ErrorKind::Unavailable), Renewed, Released,]
    );
    release_all(&provider, [kept]);
    drop((provider, earlier));
    server.assert_clean();
}

/// No replica acknowledges: grants are given back, renewals count as unknown, releases do not wait.
fn batch_needs_replicas(kind: RedisKind) {
    let server = start(kind);
    let earlier = open(&server, |options| options);
    let provider = open(&server, |options| {
        // WAIT takes most of it, and a busy server still replies in time.
        options.replicas(1).response_timeout(Duration::from_secs(6))
    });
    let [mut kept, mut freed, mut lost] = acquire(&earlier, ["k", "f", "x"]);
    end(&server, "x");
    let names = names(["a", "k", "b"]);
    let [first, busy, last] = names.each_ref().map(request);
    let batch = vec![
        attempt(&first),
        attempt(&busy),
        renew(&mut kept),
        renew(&mut lost),
        release(&mut freed),
        attempt(&last),
    ];
    let (answers, _) = run(&provider, batch);
    assert_eq!(
        answers,
        [
            Failed(ErrorKind::Unavailable),
            Busy,
            Failed(ErrorKind::Unavailable),
            Lost,
            Released,
            Failed(ErrorKind::Unavailable),
        ]
    );
    assert_eq!(keys_left(&server), ["lockkeeper:{default:k}"]);
    assert_eq!(server.calls().unwrap().get("wait"), Some(&1));
    release_all(&provider, [kept]);
    drop((provider, earlier));
    server.assert_clean();
}

fn batch_of_attempts_leaves_one_connection(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = open_via(proxy.addr(), |options| {
        let options = options.pool_size(2).connect_timeout(WAIT_LIMIT);
        options.response_timeout(Duration::from_secs(6))
    });
    let [mut kept] = acquire(&provider, ["k"]);
    let names = names(["a", "b"]);
    let [first, second] = names.each_ref();
    let before = proxy.counts().held;
    proxy.once("EVALSHA", Fault::DelayRequests(Duration::from_secs(10)));
    thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let request = request(first);
            run(&provider, vec![attempt(&request)]).0
        });
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.held > before));
        let request = request(second);
        // A batch that renews may use the connection that is left.
        let (answers, mut grants) = run(&provider, vec![attempt(&request), renew(&mut kept)]);
        assert_eq!(answers, [Granted, Renewed]);
        let soon = SystemClock.now() + Duration::from_millis(200);
        let (answers, _) = run(&provider, vec![attempt_until(&request, soon)]);
        assert_eq!(answers, [Failed(ErrorKind::PoolExhausted)]);
        assert_eq!(stuck.join().unwrap(), [Failed(ErrorKind::Unknown)]);
        release_all(&provider, [kept, grants.pop().unwrap().lease]);
    });
    drop(provider);
    drop(proxy);
    server.assert_clean();
}
