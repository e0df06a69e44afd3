//! The cases that every server has whose sessions are the leases.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{
    Config, Error, ErrorKind, FencingToken, LockGuard, LockKeeper, LockName, ObservedLock,
    Observer, Released, WaitOutcome,
};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{Fault, Proxy, until};

use crate::faults::{
    FaultServer, Memory, WAIT_LIMIT, assert_closed, contend_during, fake_server, refused,
};

/// A server that frees what a session holds when the session ends.
pub(crate) trait SessionServer: FaultServer {
    /// What an error calls the server.
    const SERVER: &'static str;
    /// First messages of other servers.
    const GREETINGS: &'static [&'static [u8]];
    /// The error when a server waits for a request, and does not understand it.
    const NOT_UNDERSTOOD: ErrorKind;

    /// Returns the sessions that hold any of the names.
    fn holders(&self, names: &[&str]) -> BTreeSet<u64>;
    /// Returns the sessions that wait for a name.
    fn waiters(&self, name: &str) -> BTreeSet<u64>;
    /// Ends a session. It may end a moment later.
    fn kill(&self, session: u64);
    /// Cancels the statement that a session runs.
    fn cancel(&self, session: u64);
}

pub(crate) fn cases<S: SessionServer>() -> Vec<Case<S::Kind>> {
    vec![
        ("holders_session_killed", holders_session_killed::<S>),
        ("waiters_sessions_killed", waiters_sessions_killed::<S>),
        (
            "waiters_statements_cancelled",
            waiters_statements_cancelled::<S>,
        ),
        ("killed_sessions_are_lost_at_once", |kind| {
            let server = S::start(kind);
            lose_all(&server, |_, guards| kill_while_used(&server, &guards[0]));
        }),
        ("cut_connections_are_lost_at_once", |kind| {
            lose_all(&S::start(kind), |proxy, _| proxy.cut());
        }),
        ("restarted_server_is_noticed_at_once", |kind| {
            let server = S::start(kind);
            lose_all(&server, |_, _| server.restart().unwrap());
        }),
        (
            "forced_release_is_noticed_at_once",
            forced_release_is_noticed_at_once::<S>,
        ),
        ("request_later_than_wait", request_later_than_wait::<S>),
        (
            "slow_release_of_a_drop_has_its_answer",
            slow_release_of_a_drop_has_its_answer::<S>,
        ),
        (
            "other_protocol_on_the_port",
            other_protocol_on_the_port::<S>,
        ),
    ]
}

/// Keeps the answers to releases.
#[derive(Default)]
struct Releases(Mutex<Vec<Result<Released, Error>>>);

impl Observer for Releases {
    fn released(
        &self,
        _: &ObservedLock<'_>,
        _: FencingToken,
        _: Duration,
        result: &Result<Released, Error>,
    ) {
        self.0.lock().unwrap().push(result.clone());
    }
}

/// The drop leaves before the reply comes. The server is not silent for longer than a reply may take.
fn slow_release_of_a_drop_has_its_answer<S: SessionServer>(kind: S::Kind) {
    let server = S::start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let releases = Arc::new(Releases::default());
    let url = server.url_with(proxy.addr(), "ttl=60s");
    let config = Config::from_url(&url).unwrap();
    let config = config.observer(Arc::clone(&releases) as _);
    let keeper = lockkeeper::open_config(&config).unwrap();
    for delay in [150, 400] {
        let guard = keeper.lock("a").unwrap();
        proxy.set(Fault::DelayReplies(Duration::from_millis(delay)));
        drop(guard);
        let answers = || std::mem::take(&mut *releases.0.lock().unwrap());
        let mut told = Vec::new();
        until("the release is answered", || {
            told.extend(answers());
            !told.is_empty()
        });
        proxy.set(Fault::Pass);
        assert!(matches!(&*told, [Ok(Released::Done)]), "{told:?}");
    }
    drop(keeper);
    server.assert_clean();
    assert_closed(&proxy);
}

fn holders_session_killed<S: SessionServer>(kind: S::Kind) {
    let server = S::start(kind);
    contend_during(&server, Memory::Lost, || {
        let holders = server.holders(&["a"]);
        holders.iter().for_each(|session| server.kill(*session));
        // By then the waiters may have been granted it.
        until("the session has ended", || {
            server.holders(&["a"]).is_disjoint(&holders)
        });
    });
}

fn waiters_sessions_killed<S: SessionServer>(kind: S::Kind) {
    let server = S::start(kind);
    contend_during(&server, Memory::Kept, || {
        let old = server.waiters("a");
        assert_eq!(old.len(), 3);
        old.iter().for_each(|session| server.kill(*session));
        until("all wait again", || {
            let now = server.waiters("a");
            now.len() == 3 && now.is_disjoint(&old)
        });
    });
}

fn waiters_statements_cancelled<S: SessionServer>(kind: S::Kind) {
    let server = S::start(kind);
    contend_during(&server, Memory::Kept, || {
        let waiters = server.waiters("a");
        assert_eq!(waiters.len(), 3);
        waiters.iter().for_each(|it| server.cancel(*it));
        until("all wait again", || server.waiters("a").len() == 3);
    });
}

/// The next renewal is 20 minutes away.
const KEYS: &str = "ttl=1h&pool_size=4&wait=30s";
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Locks one name on a session of its own, which waited for it, and others on shared sessions.
fn lock_all<S: SessionServer>(server: &S, keeper: &LockKeeper) -> [LockGuard; 6] {
    let waited = server.lock_after_waiting(keeper, &server.open(""));
    let [_, b, c, d, e, f] = NAMES;
    let [b, c, d, e, f] = [b, c, d, e, f].map(|name| keeper.lock(name).unwrap());
    [waited, b, c, d, e, f]
}

/// Kills all sessions of a keeper, of which one is in use and the others are idle.
fn kill_while_used<S: SessionServer>(server: &S, used: &LockGuard) {
    let sessions = server.holders(&NAMES);
    assert!(sessions.len() > 1, "{sessions:?}");
    let renewals = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while used.is_held() {
                if let Err(error) = used.renew() {
                    let kinds = [ErrorKind::Lost, ErrorKind::Unknown];
                    assert!(kinds.contains(&error.kind()), "{error:?}");
                }
                renewals.fetch_add(1, Ordering::Relaxed);
            }
        });
        until("a session is in use", || {
            renewals.load(Ordering::Relaxed) > 10
        });
        sessions.iter().for_each(|session| server.kill(*session));
    });
}

/// Ends all sessions of a keeper, and checks that all guards are lost.
#[track_caller]
fn lose_all<S: SessionServer>(server: &S, end: impl FnOnce(&Proxy, &[LockGuard; 6])) {
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = server.open_via(&proxy, KEYS);
    let guards = lock_all(server, &keeper);
    end(&proxy, &guards);
    for guard in &guards {
        assert_eq!(guard.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    }
    for guard in guards {
        let (name, token) = (guard.name().to_string(), guard.token());
        assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
        let next = keeper.lock(name.as_str()).unwrap();
        assert!(next.token() > token, "{name}");
    }
    drop(keeper);
    server.assert_clean();
}

fn forced_release_is_noticed_at_once<S: SessionServer>(kind: S::Kind) {
    let server = S::start(kind);
    let [keeper, operator] = [(); 2].map(|()| server.open(KEYS));
    let held = keeper.lock("a").unwrap();
    let admin = operator.admin().unwrap();
    let soon = || SystemClock.now() + WAIT_LIMIT;
    let name = LockName::new("a").unwrap();
    let shown = admin.held(Some(&name), soon()).unwrap().remove(0);
    assert!(admin.force_release(&shown, soon()).unwrap());
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(operator.lock("a").unwrap().token() > held.token());
    drop((held, keeper, operator));
    server.assert_clean();
}

fn request_later_than_wait<S: SessionServer>(kind: S::Kind) {
    let server = S::start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let slow = server.open_via(&proxy, "ttl=1s&wait=600ms");
    let rival = server.open("wait=20s");
    drop(slow.try_lock_for("a", WAIT_LIMIT).unwrap());
    proxy.set(Fault::DelayRequests(Duration::from_secs(3)));
    let error = slow.lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    proxy.set(Fault::Pass);
    // The late request grants nothing.
    let first = rival.lock("a").unwrap();
    assert!(first.is_held());
    let token = first.token();
    assert_eq!(first.release().unwrap(), Released::Done);
    until("the lock is free", || server.holders(&["a"]).is_empty());
    let again = slow.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
    assert!(again.token() > token);
    drop((again, slow, rival));
    server.assert_clean();
}

fn other_protocol_on_the_port<S: SessionServer>(_: S::Kind) {
    for greeting in S::GREETINGS {
        let addr = fake_server(greeting, b"what?\r\n", usize::MAX);
        for url in S::urls_of(&addr) {
            let url = format!("{url}connect_timeout=300ms");
            let error = lockkeeper::open(&url).expect_err("it is another server");
            let kinds = [ErrorKind::Incompatible, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(S::SERVER) && text.contains(&addr), "{text}");
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }
    // Redis and HTTP servers send nothing before the client does.
    let silent = fake_server(b"", b"-ERR unknown command\r\n", usize::MAX);
    let [url, _] = S::urls_of(&silent);
    let url = format!("{url}connect_timeout=300ms");
    refused(&url, S::NOT_UNDERSTOOD, &[&silent, S::SERVER]);
}
