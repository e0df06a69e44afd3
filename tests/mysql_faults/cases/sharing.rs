//! What locks cost the server, and that the application's connections are its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::mysql::{MySqlOptions, MySqlProvider};
use lockkeeper::{
    AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, LockName, Observer, Released,
    WaitOutcome,
};
use lockkeeper_testkit::{Fault, MySqlKind, MySqlServer, Proxy};
use mysql::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};

use super::store::{holder_of, open, settled, start, waiting_for};
use crate::rig::{PATIENCE, until};

/// Counts those who were told that somebody else holds it.
#[derive(Default)]
struct Contended(AtomicUsize);

impl Observer for Contended {
    fn contended(&self, _: &LockName) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) fn applications_pool_run_dry(kind: MySqlKind) {
    let server = start(kind);
    let url = Opts::from_url(&server.url()).unwrap();
    let few = PoolConstraints::new(2, 2).unwrap();
    let few = PoolOpts::default().with_constraints(few);
    let pool = Pool::new(OptsBuilder::from_opts(url.clone()).pool_opts(few)).unwrap();
    let taken = [(); 2].map(|()| pool.get_conn().unwrap());
    let dry = |pool: &Pool| pool.try_get_conn(Duration::from_millis(1)).is_err();
    assert!(dry(&pool));
    // Made from the application's own options, and not out of its pool.
    let provider = MySqlProvider::open(&MySqlOptions::from_opts(url), "shop").unwrap();
    let keeper = LockKeeper::builder(Arc::new(provider)).build().unwrap();
    thread::scope(|scope| {
        let held = keeper.lock("a").unwrap();
        let waiting = [(); 3].map(|()| scope.spawn(|| keeper.lock("a").unwrap().release()));
        assert_eq!(held.release().unwrap(), Released::Done);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap().unwrap(), Released::Done);
        }
    });
    assert!(dry(&pool));
    drop((taken, keeper, pool));
    settled(&server);
}

pub(super) fn hundred_threads(kind: MySqlKind) {
    let server = start(kind);
    let seen = Arc::new(Contended::default());
    let url = Opts::from_url(&server.url()).unwrap();
    let provider = MySqlProvider::open(&MySqlOptions::from_opts(url), "default").unwrap();
    let keeper = LockKeeper::builder(Arc::new(provider))
        .observer(Arc::clone(&seen) as Arc<dyn Observer>)
        .build()
        .unwrap();
    // Not through a keeper, so that all connections of the user's are those of one.
    let mut root = server.client().unwrap();
    root.execute("DO GET_LOCK('default:a', 0)").unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..100)
            .map(|_| {
                scope.spawn(|| {
                    let granted = keeper.try_lock_for("a", Duration::from_secs(60));
                    granted
                        .unwrap()
                        .expect("it is its turn in the end")
                        .release()
                })
            })
            .collect();
        until("all wait", || seen.0.load(Ordering::SeqCst) == 100);
        until("one of them in the server", || {
            waiting_for(&server, "a").len() == 1
        });
        assert_eq!(connections(&server), 1);
        root.execute("DO RELEASE_LOCK('default:a')").unwrap();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), Released::Done);
        }
    });
    drop(keeper);
    settled(&server);
}

fn connections(server: &MySqlServer) -> usize {
    server.sessions().unwrap().len()
}

pub(super) fn thousand_names(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=30s&pool_size=8");
    let rival = open(&server.url(), "");
    let guards: Vec<_> = (0..1000)
        .map(|number| keeper.lock(format!("name {number}").as_str()).unwrap())
        .collect();
    // One of them may be the rival's.
    let count = connections(&server);
    assert!(count <= 8 + 1, "{count}");
    for (number, guard) in guards.iter().enumerate() {
        assert!(guard.is_held());
        if number % 100 == 0 {
            guard.renew().unwrap();
            assert!(
                rival
                    .try_lock(format!("name {number}").as_str())
                    .unwrap()
                    .is_none()
            );
        }
    }
    // There is room for a wait, too.
    let theirs = rival.lock("theirs").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("theirs", Duration::from_secs(20)));
        until("one waits", || waiting_for(&server, "theirs").len() == 1);
        assert_eq!(theirs.release().unwrap(), Released::Done);
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
    for guard in guards {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop((keeper, rival));
    settled(&server);
}

/// Names of one keeper on two sessions, half of a pool of four.
fn held_together(keeper: &LockKeeper) -> Vec<(String, LockGuard)> {
    let names = (0..20).map(|number| format!("name-{number}"));
    names
        .map(|name| {
            let guard = keeper.lock(name.as_str()).unwrap();
            (name, guard)
        })
        .collect()
}

/// Nobody believes in what the rival can have.
#[track_caller]
fn none_twice(held: &[(String, LockGuard)], rival: &LockKeeper) {
    for (name, guard) in held {
        let next = rival.try_lock(name.as_str()).unwrap();
        assert!(next.is_none() || !guard.is_held(), "{name} is held twice");
    }
}

/// The rival gets all of it in the end.
#[track_caller]
fn handed_on(held: Vec<(String, LockGuard)>, rival: &LockKeeper) {
    for (name, guard) in held {
        let was_held = guard.is_held();
        let token = guard.token();
        match guard.release() {
            Ok(Released::Done) => assert!(was_held, "{name}"),
            Ok(Released::AlreadyLost) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
        }
        let next = rival.lock(name.as_str()).unwrap();
        assert!(next.token() > token, "{name}");
    }
}

pub(super) fn session_killed(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=6s&pool_size=4");
    let rival = open(&server.url(), "wait=20s");
    let held = held_together(&keeper);
    let id = holder_of(&server, "name-19").unwrap();
    let on_it = |name: &str| holder_of(&server, name) == Some(id);
    let (theirs, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|(name, _)| on_it(name));
    assert!(theirs.len() > 1 && !others.is_empty());
    server.execute(&format!("KILL {id}")).unwrap();
    for (_, guard) in &theirs {
        assert_eq!(guard.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
    }
    for (name, guard) in &others {
        guard.renew().unwrap();
        assert!(guard.is_held(), "{name} was on another session");
    }
    none_twice(&theirs, &rival);
    none_twice(&others, &rival);
    handed_on(theirs, &rival);
    handed_on(others, &rival);
    drop((keeper, rival));
    settled(&server);
}

pub(super) fn session_in_doubt(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let rival = open(&server.url(), "wait=20s");
    for fault in [
        Fault::DropRequests,
        Fault::DropReplies,
        Fault::CutReplyAfter(0),
    ] {
        let keys = "ttl=4s&pool_size=4&wait=20s";
        let keeper = open(&url, keys);
        let mut held = held_together(&keeper);
        let (name, guard) = held.pop().unwrap();
        let id = holder_of(&server, &name);
        let theirs = held
            .iter()
            .filter(|(name, _)| holder_of(&server, name) == id);
        let theirs: Vec<_> = theirs.map(|(_, guard)| guard.lost_signal()).collect();
        proxy.once(format!("default:{name}"), fault);
        let _ = guard.release();
        if matches!(fault, Fault::CutReplyAfter(_)) {
            // The server frees what it held at once, and the next renewals find out.
            for guard in &theirs {
                assert_eq!(guard.wait(PATIENCE), WaitOutcome::Lost);
            }
        }
        none_twice(&held, &rival);
        handed_on(held, &rival);
        drop(rival.lock(name.as_str()).unwrap());
        // The keeper goes on, too.
        drop(keeper.lock(name.as_str()).unwrap());
    }
    drop(rival);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

/// A call about one name may be cut short by that name's deadline; the other names of the session
/// live on.
pub(super) fn session_outlasts_a_neighbours_call(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = open(&server.url_via(proxy.addr()), "pool_size=2");
    let ttl = Duration::from_secs(5);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let [old, kept] = ["old", "kept"].map(|name| keeper.acquire(name, &fixed).unwrap().unwrap());
    assert_eq!(holder_of(&server, "old"), holder_of(&server, "kept"));
    assert_eq!(old.lost_signal().wait(ttl * 2 / 3), WaitOutcome::TimedOut);
    kept.renew().unwrap();
    proxy.set(Fault::Dark);
    old.renew().unwrap_err();
    proxy.set(Fault::Pass);
    kept.renew().unwrap();
    assert_eq!(kept.release().unwrap(), Released::Done);
    drop((old, keeper));
    settled(&server);
}

/// Nobody else holds it: the server granted it to an attempt that nobody waits for any more.
pub(super) fn own_abandoned_attempt_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=20s&pool_size=4&response_timeout=500ms&connect_timeout=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    // Names share sessions from here on, and a second attempt finds another one than the first.
    let held = ["x", "y"].map(|name| keeper.lock(name).unwrap());
    let late = |secs| Fault::DelayReplies(Duration::from_secs(secs));
    proxy.once("default:a", late(2));
    let granted = keeper.try_lock("a").unwrap();
    let granted = granted.expect("the abandoned attempt gives it back");
    assert_eq!(granted.release().unwrap(), Released::Done);
    // A wait that ends before the answer to its first attempt is here.
    proxy.once("default:b", late(4));
    match keeper.try_lock_for("b", Duration::from_secs(1)) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
        Ok(_) => panic!("nobody was seen to hold it, and the answer was still on its way"),
    }
    until("it is given back", || holder_of(&server, "b").is_none());
    for guard in held {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    settled(&server);
}
