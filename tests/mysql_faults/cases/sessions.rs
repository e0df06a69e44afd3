//! Sessions that an operator or a limit ends, or does not let begin.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{Clock as _, ErrorKind, LockName, Released, SystemClock};
use lockkeeper_testkit::{Fault, MySqlClient, MySqlKind, MySqlOptions, MySqlServer, Proxy};
use mysql::{Conn, Opts, OptsBuilder};

use super::store::{Memory, besieged, holder_of, open, settled, start, waiting_among, waiting_for};
use crate::rig::{HANG, PATIENCE, until};

fn kill(server: &MySqlServer, what: &str, id: u64) {
    server.execute(&format!("KILL {what} {id}")).unwrap();
}

pub(super) fn holders_session_killed(kind: MySqlKind) {
    besieged(kind, Memory::Lost, |server| {
        let id = holder_of(server, "a").unwrap();
        kill(server, "CONNECTION", id);
        // It ends when it comes to it, and the next ones may have been there and gone by then.
        until("it has ended", || holder_of(server, "a") != Some(id));
    });
}

pub(super) fn waiters_sessions_killed(kind: MySqlKind) {
    besieged(kind, Memory::Kept, |server| {
        killed_and_back(server, "CONNECTION");
    });
}

pub(super) fn waiters_statements_killed(kind: MySqlKind) {
    besieged(kind, Memory::Kept, |server| {
        killed_and_back(server, "QUERY");
    });
}

/// Ends them all, and waits until as many have come back.
fn killed_and_back(server: &MySqlServer, what: &str) {
    let old = waiting_for(server, "a");
    assert_eq!(old.len(), 3);
    for session in &old {
        kill(server, what, session.id);
    }
    until("all wait again", || {
        let now = waiting_for(server, "a");
        let back = |id| what == "QUERY" || old.iter().all(|session| session.id != id);
        now.iter().filter(|session| back(session.id)).count() == 3
    });
}

/// The server's own limits for everybody do not end a session of ours.
pub(super) fn limits_lowered(kind: MySqlKind) {
    let server = start(kind);
    let before = open(&server.url(), "ttl=9s");
    let early = before.lock("early").unwrap();
    for limit in ["wait_timeout = 1", "interactive_timeout = 1"] {
        server.execute(&format!("SET GLOBAL {limit}")).unwrap();
    }
    server
        .execute(match kind {
            MySqlKind::MariaDb10 => "SET GLOBAL max_statement_time = 0.5",
            MySqlKind::MySql9 => "SET GLOBAL max_execution_time = 500",
        })
        .unwrap();
    let [after, rival] = [(); 2].map(|()| open(&server.url(), "ttl=9s"));
    let late = after.lock("late").unwrap();
    let began = Instant::now();
    let busy = rival.try_lock_for("late", Duration::from_secs(3)).unwrap();
    assert!(busy.is_none(), "it is held");
    // Past the first renewals, so that the limits were met again and again.
    until("the limits are over several times", || {
        began.elapsed() > Duration::from_secs(5)
    });
    for guard in [early, late] {
        assert!(guard.is_held());
        guard.renew().unwrap();
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(rival);
    // What is idle was closed by the server; nobody notices.
    until("the idle ones are closed", || {
        server.sessions().unwrap().is_empty()
    });
    drop(before.lock("early").unwrap());
    drop(after.try_lock("late").unwrap().expect("it is free"));
    drop((before, after));
    settled(&server);
}

pub(super) fn no_connection_left(kind: MySqlKind) {
    let options = MySqlOptions::new().config("max-connections", "10");
    let server = MySqlServer::start(kind, &options).unwrap();
    // Both hold names of their own, so that no idle connection is left to them.
    let [keeper, rival] = [(); 2].map(|()| open(&server.url(), "ttl=6s"));
    let held = keeper.lock("a").unwrap();
    let other = rival.lock("b").unwrap();
    let mut root = server.client().unwrap();
    root.execute("DO GET_LOCK('default:c', 0)").unwrap();
    let mut others = Vec::new();
    // Each of them one connection, and not first one by TCP and then one by the socket.
    let options = OptsBuilder::from_opts(Opts::from_url(&server.url()).unwrap());
    let options = options.prefer_socket(false);
    let full = loop {
        match Conn::new(options.clone()) {
            Ok(conn) => others.push(conn),
            Err(error) => break error.to_string(),
        }
    };
    assert!(full.contains("1040"), "{full}");
    let began = Instant::now();
    let error = lockkeeper::open(&server.url()).expect_err("it is full");
    assert!(began.elapsed() < HANG);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    // All of them lock there: a fallback would exclude none.
    let fallback = format!("{}?fallback=memory:", server.url());
    let error = lockkeeper::open(&fallback).expect_err("it is full, and it is there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // MariaDB lets them in to see whether they are root.
    let refused = |root: &mut MySqlClient| {
        let counters = ["Connection_errors_max_connections", "Aborted_connects"];
        let [first, second] = counters.map(|counter| root.status(counter).unwrap());
        first + second
    };
    let before = refused(&mut root);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("c", Duration::from_secs(25)));
        until("it is refused", || refused(&mut root) > before);
        // What is held is kept meanwhile.
        held.renew().unwrap();
        other.renew().unwrap();
        others.clear();
        // The server may not have seen yet that it has room again.
        until("it waits", || {
            waiting_among(root.sessions().unwrap(), "c").len() == 1
        });
        root.execute("DO RELEASE_LOCK('default:c')").unwrap();
        let granted = waiting.join().unwrap().unwrap();
        assert!(granted.expect("it rides that out").is_held());
    });
    for guard in [held, other] {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop((keeper, rival));
    settled(&server);
}

/// No server sees this deadlock, as no session waits that holds: the deadlines end it.
pub(super) fn two_names_in_opposite_order(kind: MySqlKind) {
    let server = start(kind);
    let wait = Duration::from_secs(2);
    let keepers = [(); 2].map(|()| open(&server.url(), "ttl=9s"));
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
            match answer.join().unwrap() {
                Ok(None) => {}
                Ok(Some(_)) => panic!("the other one holds it"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Deadlock, "{error:?}"),
            }
        }
    });
    for guard in holds {
        assert!(guard.is_held());
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keepers);
    settled(&server);
}

/// A forced release looks and ends the session in one statement: what the session took meanwhile
/// stays.
pub(super) fn late_kill(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = open(&server.url(), "pool_size=1");
    let asking = open(&server.url_via(proxy.addr()), "");
    let admin = asking.admin().unwrap();
    let soon = || SystemClock.now() + PATIENCE;
    let held = keeper.lock("a").unwrap();
    let session = holder_of(&server, "a");
    let name = LockName::new("a").unwrap();
    let shown = admin.held(Some(&name), soon()).unwrap().remove(0);
    proxy.once("KILL", Fault::DelayRequests(Duration::from_secs(1)));
    thread::scope(|scope| {
        let freed = scope.spawn(|| admin.force_release(&shown, soon()));
        assert!(proxy.wait_for(PATIENCE, |counts| counts.held == 1));
        assert_eq!(held.release().unwrap(), Released::Done);
        let next = keeper.lock("b").unwrap();
        assert_eq!(holder_of(&server, "b"), session);
        assert!(!freed.join().unwrap().unwrap());
        next.renew().unwrap();
        assert_eq!(next.release().unwrap(), Released::Done);
    });
    drop((asking, keeper));
    settled(&server);
}
