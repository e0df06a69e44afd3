//! The cases of all servers whose leases are sessions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{
    AcquireOptions, CancelToken, Config, Error, ErrorKind, FencingToken, LeasePolicy, LockGuard,
    LockKeeper, ObservedLock, Observer, Released, WaitOutcome,
};
use lockkeeper_testkit::{Fault, Proxy, StoreKind, TestServer, until};

use super::servers::{Memory, contend_during, urls_at};
use super::{
    Case, HANG, Keepers as _, WAIT_LIMIT, Witness, assert_closed, cancel_after, fake_server,
    refused, start,
};

/// What other programs on the port of a server send, and how errors name the server.
struct Protocol {
    server: &'static str,
    /// First messages of other servers.
    greetings: &'static [&'static [u8]],
    /// The error when a server waits for a request, and does not understand it.
    not_understood: ErrorKind,
}

const MYSQL: Protocol = Protocol {
    server: "MySQL server",
    greetings: &[
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"220 mail.example.org ESMTP\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0",
        b"\x01\0\0\0\x09",
        // MySQL 3.23, which hashed passwords in another way.
        b"\x19\x00\x00\x00\x093.23.49\x00\x01\x00\x00\x00abcdefgh\x00\x2c\x00",
    ],
    not_understood: ErrorKind::Unavailable,
};

const POSTGRES: Protocol = Protocol {
    server: "PostgreSQL server",
    greetings: &[
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"R\0\0\0\x01",
        b"R\x7f\xff\xff\xff\0\0\0\0",
        b"E\0\0\0\x05\0",
    ],
    not_understood: ErrorKind::Incompatible,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        ("holders_session_killed", holders_session_killed),
        ("waiters_sessions_killed", waiters_sessions_killed),
        ("waiters_statements_cancelled", waiters_statements_cancelled),
        (
            "cancelled_attempts_leave_nothing",
            cancelled_attempts_leave_nothing,
        ),
        (
            "cancelled_attempts_end_without_a_connection",
            cancelled_attempts_end_without_a_connection,
        ),
        ("killed_sessions_are_lost_at_once", |kind| {
            let server = start(kind);
            lose_all(&*server, |_, guards| kill_while_used(&*server, &guards[0]));
        }),
        ("cut_connections_are_lost_at_once", |kind| {
            lose_all(&*start(kind), |proxy, _| proxy.cut());
        }),
        (
            "restart_grace_outlasts_a_cut_off_holder",
            restart_grace_outlasts_a_cut_off_holder,
        ),
        (
            "slow_release_of_a_drop_has_its_answer",
            slow_release_of_a_drop_has_its_answer,
        ),
        ("two_names_in_opposite_order", two_names_in_opposite_order),
        ("other_protocol_on_the_port", other_protocol_on_the_port),
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
fn slow_release_of_a_drop_has_its_answer(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
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

fn holders_session_killed(kind: StoreKind) {
    let server = start(kind);
    contend_during(&*server, Memory::Lost, || {
        let holders = server.holding_sessions("default", &["a"]).unwrap();
        holders
            .iter()
            .for_each(|session| server.kill_session(*session).unwrap());
        // By then the waiters may have been granted it.
        until("the session has ended", || {
            server
                .holding_sessions("default", &["a"])
                .unwrap()
                .is_disjoint(&holders)
        });
    });
}

fn waiters_sessions_killed(kind: StoreKind) {
    let server = start(kind);
    contend_during(&*server, Memory::Kept, || {
        let old = server.waiting_sessions("default", "a").unwrap();
        assert_eq!(old.len(), 3);
        old.iter()
            .for_each(|session| server.kill_session(*session).unwrap());
        until("all wait again", || {
            let now = server.waiting_sessions("default", "a").unwrap();
            now.len() == 3 && now.is_disjoint(&old)
        });
    });
}

fn waiters_statements_cancelled(kind: StoreKind) {
    let server = start(kind);
    contend_during(&*server, Memory::Kept, || {
        let waiters = server.waiting_sessions("default", "a").unwrap();
        assert_eq!(waiters.len(), 3);
        waiters
            .iter()
            .for_each(|it| server.cancel_statement(*it).unwrap());
        until("all wait again", || {
            server.waiting_sessions("default", "a").unwrap().len() == 3
        });
    });
}

/// Many threads cancel attempts and waits at any moment. The leases that some of them get are longer than the test.
fn cancelled_attempts_leave_nothing(kind: StoreKind) {
    let server = start(kind);
    let keepers = ["ttl=1h&wait=30s"; 2].map(|keys| server.open(keys));
    thread::scope(|scope| {
        for number in 0..16 {
            let keeper = &keepers[usize::from(number % 2 == 0)];
            scope.spawn(move || {
                for round in 0..10 {
                    let cancel = CancelToken::new();
                    let cancelling = cancel.clone();
                    let cancelling = thread::spawn(move || {
                        thread::sleep(Duration::from_micros((number + round) * 211 % 3_000));
                        cancelling.cancel();
                    });
                    let options = AcquireOptions::new().cancel(&cancel);
                    let name = NAMES[usize::try_from((number / 2 + round * 5) % 6).unwrap()];
                    drop(keeper.acquire(name, &options));
                    cancelling.join().unwrap();
                }
            });
        }
    });
    for name in NAMES {
        let guard = keepers[0].try_lock_for(name, WAIT_LIMIT).unwrap();
        assert!(guard.is_some(), "{name} is left behind");
    }
    drop(keepers);
    server.assert_clean();
}

/// The only connection holds a name of another ttl, and may be waited for longer than the limits of this test. A cancel ends
/// that at any moment.
fn cancelled_attempts_end_without_a_connection(kind: StoreKind) {
    let server = start(kind);
    let keeper = server.open("ttl=1h&pool_size=1&response_timeout=5m");
    let held = keeper.lock("a").unwrap();
    for delay in [0, 1, 10, 100, 400].map(Duration::from_millis) {
        let options = AcquireOptions::new().lease(LeasePolicy::Renewed {
            ttl: Duration::from_secs(7_200),
        });
        cancel_after(&keeper, "b", options, || thread::sleep(delay));
    }
    assert_eq!(held.release().unwrap(), Released::Done);
    drop(keeper);
    server.assert_clean();
}

/// The next renewal is 20 minutes away.
const KEYS: &str = "ttl=1h&pool_size=4&wait=30s";
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Locks one name on a session of its own, which waited for it, and others on shared sessions.
fn lock_all(server: &dyn TestServer, keeper: &LockKeeper) -> [LockGuard; 6] {
    let waited = server.lock_after_waiting(keeper, &server.open(""));
    let [_, b, c, d, e, f] = NAMES;
    let [b, c, d, e, f] = [b, c, d, e, f].map(|name| keeper.lock(name).unwrap());
    [waited, b, c, d, e, f]
}

/// Kills all sessions of a keeper, of which one is in use and the others are idle.
fn kill_while_used(server: &dyn TestServer, used: &LockGuard) {
    let sessions = server.holding_sessions("default", &NAMES).unwrap();
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
        sessions
            .iter()
            .for_each(|session| server.kill_session(*session).unwrap());
    });
}

/// Ends all sessions of a keeper, and checks that all guards are lost.
#[track_caller]
fn lose_all(server: &dyn TestServer, end: impl FnOnce(&Proxy, &[LockGuard; 6])) {
    let proxy = server.start_proxy();
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

/// A restart frees the name while its holder is cut off. The server grants it to another keeper only when the holder's
/// lease has ended by the holder's own clock.
fn restart_grace_outlasts_a_cut_off_holder(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let cut_off = server.open_via(&proxy, "ttl=3s");
    let witness = Witness::new(true);
    let held = cut_off.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::Dark);
    server.restart().unwrap();
    // Both can be opened meanwhile.
    let [never, soon] =
        ["1h", "4s"].map(|grace| server.open(&format!("restart_grace={grace}&wait=60s")));
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        // A busy machine may leave no time to ask the server.
        until("the grace is the reason", || {
            let error = never.try_lock_for("a", wait).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            format!("{error:?}").contains("`restart_grace`")
        });
    }
    // The witness checks that the former holder knows of its loss by now.
    let next = soon.lock("a").unwrap();
    witness.enter(&next);
    proxy.set(Fault::Pass);
    drop((held, next, cut_off, never, soon));
    server.assert_clean();
}

/// The server does not know which locks one keeper needs, so it detects no deadlock here: the deadlines end it.
fn two_names_in_opposite_order(kind: StoreKind) {
    let server = start(kind);
    let wait = Duration::from_secs(2);
    let keepers = [(); 2].map(|()| server.open("ttl=9s"));
    let [one, two] = &keepers;
    let holds = [one.lock("a").unwrap(), two.lock("b").unwrap()];
    thread::scope(|scope| {
        let answers = [(one, "b"), (two, "a")].map(|(keeper, name)| {
            scope.spawn(move || {
                let began = Instant::now();
                let answer = keeper.try_lock_for(name, wait);
                assert!(began.elapsed() < wait + HANG, "{:?}", began.elapsed());
                answer
            })
        });
        for answer in answers {
            let answer = answer.join().unwrap().unwrap();
            assert!(answer.is_none(), "the other keeper holds it");
        }
    });
    for guard in holds {
        assert!(guard.is_held());
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keepers);
    server.assert_clean();
}

fn other_protocol_on_the_port(kind: StoreKind) {
    let protocol = match kind {
        StoreKind::MySql(_) => MYSQL,
        _ => POSTGRES,
    };
    let server = start(kind);
    for greeting in protocol.greetings {
        let addr = fake_server(greeting, b"what?\r\n", usize::MAX);
        for url in urls_at(&*server, &addr) {
            let url = format!("{url}connect_timeout=300ms");
            let error = lockkeeper::open(&url).expect_err("it is another server");
            let kinds = [ErrorKind::Incompatible, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains(protocol.server) && text.contains(&addr),
                "{text}"
            );
            assert!(!format!("{error:?}").contains("open-sesame"), "{error:?}");
        }
    }
    // Redis and HTTP servers send nothing before the client does.
    let silent = fake_server(b"", b"-ERR unknown command\r\n", usize::MAX);
    let [url, _] = urls_at(&*server, &silent);
    let url = format!("{url}connect_timeout=300ms");
    refused(&url, protocol.not_understood, &[&silent, protocol.server]);
}
