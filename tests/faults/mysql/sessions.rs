//! Limits that end or refuse sessions, and an operator who ends one too late.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{ErrorKind, LockName, Released};
use lockkeeper_testkit::{
    Fault, MySqlClient, MySqlKind, MySqlOptions, MySqlServer, Shared, cases, until,
};
use mysql::{Conn, Opts, OptsBuilder};

use super::Case;
use crate::common::{HANG, Keepers as _, WAIT_LIMIT};

pub(super) const CASES: &[Case] = cases![
    limits_lowered,
    server_without_free_connections,
    late_kill_spares_next_lease,
];

/// The server's global limits do not end a keeper's session.
fn limits_lowered(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().show_locks()).unwrap();
    let before = server.open("ttl=9s");
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
    let [after, rival] = [(); 2].map(|()| server.open("ttl=9s"));
    let late = after.lock("late").unwrap();
    let began = Instant::now();
    let busy = rival.try_lock_for("late", Duration::from_secs(3)).unwrap();
    assert!(busy.is_none(), "it is held");
    // By then the renewals have met the limits several times.
    until("the limits are over several times", || {
        began.elapsed() > Duration::from_secs(5)
    });
    for guard in [early, late] {
        assert!(guard.is_held());
        guard.renew().unwrap();
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(rival);
    // The server closes idle sessions, which no caller notices.
    until("the idle sessions are closed", || {
        server.sessions().unwrap().is_empty()
    });
    drop(before.lock("early").unwrap());
    drop(after.try_lock("late").unwrap().expect("it is free"));
    drop((before, after));
    server.assert_clean();
}

fn server_without_free_connections(kind: MySqlKind) {
    let options = MySqlOptions::new()
        .show_locks()
        .config("max-connections", "10");
    let server = MySqlServer::start(kind, &options).unwrap();
    // Each keeper holds a name, so it has no idle connection.
    let [keeper, rival] = [(); 2].map(|()| server.open("ttl=6s"));
    let held = keeper.lock("a").unwrap();
    let other = rival.lock("b").unwrap();
    let mut root = server.client().unwrap();
    root.execute("DO GET_LOCK('default:c', 0)").unwrap();
    let mut others = Vec::new();
    // Without this, each client connects twice: by TCP, and then by the socket.
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
    // The clients that fill the server lock there, so the fallback is not used.
    let fallback = format!("{}?fallback=memory:", server.url());
    let error = lockkeeper::open(&fallback).expect_err("the server is full, and reachable");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // MariaDB accepts them first to see whether they are root.
    let refused = |root: &mut MySqlClient| {
        let counters = ["Connection_errors_max_connections", "Aborted_connects"];
        let [first, second] = counters.map(|counter| root.status(counter).unwrap());
        first + second
    };
    let before = refused(&mut root);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("c", Duration::from_secs(25)));
        until("the waiter is refused", || refused(&mut root) > before);
        // Leases are kept meanwhile.
        held.renew().unwrap();
        other.renew().unwrap();
        others.clear();
        // The server may not have noticed the closed connections.
        until("the waiter is queued", || {
            let sessions = root.sessions().unwrap();
            sessions.iter().any(|it| it.state == "User lock")
        });
        root.execute("DO RELEASE_LOCK('default:c')").unwrap();
        let granted = waiting.join().unwrap().unwrap();
        assert!(granted.expect("it outlasts the outage").is_held());
    });
    for guard in [held, other] {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop((keeper, rival));
    server.assert_clean();
}

/// A forced release checks and kills the session in one statement, so a lock that the session was granted
/// meanwhile is kept.
fn late_kill_spares_next_lease(kind: MySqlKind) {
    let server = Shared::<MySqlServer>::take(kind).unwrap();
    let proxy = server.start_proxy();
    let keeper = server.open("pool_size=1");
    let asking = server.open_via(&proxy, "response_timeout=30s");
    let admin = asking.admin().unwrap();
    let soon = || SystemClock.now() + WAIT_LIMIT;
    let held = keeper.lock("a").unwrap();
    // With it, the session takes a further name, however long the first one was held.
    let other = keeper.lock("b").unwrap();
    let session = server.holder_of("a");
    let name = LockName::new("a").unwrap();
    let shown = admin.held(Some(&name), soon()).unwrap().remove(0);
    proxy.once("KILL", Fault::Dark);
    thread::scope(|scope| {
        let freed = scope.spawn(|| admin.force_release(&shown, soon()));
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.held == 1));
        assert_eq!(held.release().unwrap(), Released::Done);
        let next = keeper.lock("c").unwrap();
        assert_eq!(server.holder_of("c"), session);
        proxy.set(Fault::Pass);
        assert!(!freed.join().unwrap().unwrap());
        for guard in [next, other] {
            guard.renew().unwrap();
            assert_eq!(guard.release().unwrap(), Released::Done);
        }
    });
    drop((asking, keeper));
    server.assert_clean();
}
