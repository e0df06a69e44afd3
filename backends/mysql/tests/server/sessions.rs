//! What locks cost the server, and names that share a session.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, Released, WaitOutcome,
};
use lockkeeper_mysql::{MySqlOptions, MySqlProvider};
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, open, options, start, waiters};

pub(crate) const CASES: &[Case] = cases![
    lock_costs_two_statements,
    thousand_names_on_few_connections,
    exhausted_pool_has_its_own_error,
    closed_connection_is_replaced,
    lease_expires_on_session_in_use,
    name_is_not_locked_twice_on_one_session,
    stalled_server_costs_no_lease,
    applications_pool_is_not_used,
];

fn connections(server: &MySqlServer) -> usize {
    server.sessions().unwrap().len()
}

fn lock_costs_two_statements(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "");
    // Not dropped: a drop cuts a release short on a busy machine.
    let lock = || keeper.lock("seat:42").unwrap().release().unwrap();
    lock();
    let mut client = server.client().unwrap();
    let mut questions = || -> u64 {
        let rows = client.rows("SHOW GLOBAL STATUS LIKE 'Questions'").unwrap();
        rows[0][1].as_deref().unwrap().parse().unwrap()
    };
    let first = questions();
    let own = questions() - first;
    // On a busy machine, a lock may be held until its renewal, which is one more.
    until(
        "100 locks cost one to acquire and one to release each",
        || {
            let before = questions();
            for _ in 0..100 {
                lock();
            }
            let cost = questions() - before - own;
            assert!(cost >= 200, "{cost}");
            cost == 200
        },
    );
}

fn thousand_names_on_few_connections(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "ttl=24s");
    let names: Vec<_> = (0..1_000).map(|n| format!("seat:{n}")).collect();
    let guards: Vec<_> = names.iter().map(|n| keeper.lock(n).unwrap()).collect();
    assert!(connections(&server) <= 8, "{:?}", keeper.usage());
    // All are renewed beyond the first ttl.
    let first = guards[0].lost_signal();
    assert_eq!(first.wait(Duration::from_secs(25)), WaitOutcome::TimedOut);
    for guard in &guards {
        assert!(guard.is_held(), "{guard:?}");
    }
    let other = open(&server, "");
    for name in names.iter().step_by(100) {
        assert!(other.try_lock(name).unwrap().is_none(), "{name}");
    }
    assert_eq!(server.held().unwrap().len(), 1_000);
    // The pool has a connection left for a wait.
    let theirs = other.lock("theirs").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("theirs", WAIT_LIMIT));
        until("the keeper waits in the server", || waiters(&server) == 1);
        assert_eq!(theirs.release().unwrap(), Released::Done);
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
    for guard in guards {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    assert_eq!(server.held().unwrap(), []);
    drop((keeper, other));
    until("the connections are closed", || connections(&server) == 0);
}

fn exhausted_pool_has_its_own_error(kind: MySqlKind) {
    let server = start(kind);
    let holder = open(&server, "");
    let held: Vec<_> = ["a", "b"].map(|name| holder.lock(name).unwrap()).into();
    let keeper = open(&server, "pool_size=3");
    let own = keeper.lock("own").unwrap();
    thread::scope(|scope| {
        for name in ["a", "b"] {
            let keeper = &keeper;
            scope.spawn(move || drop(keeper.try_lock_for(name, WAIT_LIMIT).unwrap().unwrap()));
        }
        until("both threads wait", || waiters(&server) == 2);
        // A free name is locked on the session that holds a name already.
        drop(keeper.try_lock("c").unwrap().unwrap());
        let error = keeper.acquire(
            "own 2",
            &AcquireOptions::new().lease(LeasePolicy::Fixed {
                ttl: Duration::from_secs(5),
            }),
        );
        let error = error.expect_err("there is no connection left for another ttl");
        assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error:?}");
        let text = error.to_string();
        for word in ["all 3", "1 hold", "2 wait", "pool_size"] {
            assert!(text.contains(word), "{text}");
        }
        drop(held);
    });
    // The connection of a long hold is closed, and the server may take a moment to see that.
    until("the server has the connections of both keepers", || {
        let holders = holder.usage().unwrap().connections;
        connections(&server) == 3 + usize::try_from(holders).unwrap()
    });
    drop(own);
}

/// An idle connection ends with its wait_timeout, which no caller notices.
fn closed_connection_is_replaced(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "ttl=3s");
    let hold = || ["a", "b", "c"].map(|name| keeper.lock(name).unwrap());
    // Not dropped: the server would free a name whose release is not over.
    let release = |guard: LockGuard| {
        guard.release().unwrap();
    };
    hold().into_iter().for_each(release);
    until("the server closes the idle connections", || {
        connections(&server) == 0
    });
    release(keeper.try_lock("a").unwrap().unwrap());
    release(keeper.lock("b").unwrap());
    // An operator kills all connections.
    hold().into_iter().for_each(release);
    server.end_sessions().unwrap();
    drop(keeper.try_lock("a").unwrap().unwrap());
}

/// The other names of the process keep the session alive.
fn lease_expires_on_session_in_use(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "ttl=6s&pool_size=2");
    let kept = keeper.lock("kept").unwrap();
    // Whole seconds decide whether two names share a session.
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_millis(5_500),
    });
    let ends = keeper.acquire("ends", &fixed).unwrap().unwrap();
    let held = server.held().unwrap();
    assert_eq!(held.len(), 2);
    assert_eq!(held[0].1, held[1].1, "the names share a session");
    let other = open(&server, "");
    let next = other.lock("ends").unwrap();
    assert!(!ends.is_held());
    assert!(kept.is_held());
    assert_eq!(ends.release().unwrap(), Released::AlreadyLost);
    assert!(next.is_held() && next.token().get() > 0);
    assert_eq!(
        kept.lost_signal().wait(Duration::from_secs(3)),
        WaitOutcome::TimedOut
    );
    assert_eq!(kept.release().unwrap(), Released::Done);
}

/// The server would grant the name again to the session that holds it.
fn name_is_not_locked_twice_on_one_session(kind: MySqlKind) {
    let server = start(kind);
    let options = options(&server).pool_size(2);
    let provider = Arc::new(MySqlProvider::open(&options, "shop").unwrap());
    let keepers = [0, 1].map(|_| LockKeeper::builder(provider.clone()).build().unwrap());
    let first = keepers[0].lock("a").unwrap();
    assert!(keepers[1].try_lock("a").unwrap().is_none());
    assert!(first.is_held());
    first.release().unwrap();
    let second = keepers[1].try_lock("a").unwrap().unwrap();
    second.release().unwrap();
    assert_eq!(server.held().unwrap(), []);
}

/// A call that is cut short leaves its session unusable, and the names on it are lost. So on a shared
/// session a call goes on after its caller has given up.
fn stalled_server_costs_no_lease(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(
        &server,
        "ttl=20s&pool_size=2&response_timeout=2s&connect_timeout=2s",
    );
    let [kept, also, given] = ["kept", "also", "given"].map(|name| keeper.lock(name).unwrap());
    let other = open(&server, "");
    server.stop().unwrap();
    let error = keeper.try_lock("new").expect_err("the server is silent");
    assert!(error.is_retryable(), "{error:?}");
    thread::scope(|scope| {
        let released = scope.spawn(|| given.release());
        server.cont().unwrap();
        // In time or not, the name is freed.
        let _ = released.join().unwrap();
    });
    for guard in [&kept, &also] {
        guard.renew().unwrap();
    }
    drop(other.lock("new").unwrap());
    drop(other.lock("given").unwrap());
    for guard in [kept, also] {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    assert_eq!(server.held().unwrap(), []);
}

/// The provider uses the options of the application's pool, and none of its connections.
fn applications_pool_is_not_used(kind: MySqlKind) {
    let server = start(kind);
    let opts = mysql::Opts::from_url(&server.url()).unwrap();
    let constraints = mysql::PoolConstraints::new(1, 2).unwrap();
    let pool = mysql::PoolOpts::default().with_constraints(constraints);
    let app =
        mysql::Pool::new(mysql::OptsBuilder::from_opts(opts.clone()).pool_opts(pool)).unwrap();
    // The application uses all of the pool's connections.
    let all = [app.get_conn().unwrap(), app.get_conn().unwrap()];
    assert!(app.try_get_conn(Duration::from_millis(10)).is_err());
    let provider = MySqlProvider::open(&MySqlOptions::from_opts(opts), "shop").unwrap();
    let keeper = LockKeeper::builder(Arc::new(provider)).build().unwrap();
    let first = keeper.lock("seat:42").unwrap();
    let _second = keeper.lock("seat:43").unwrap();
    assert_eq!(first.release().unwrap(), Released::Done);
    drop(all);
    assert!(app.get_conn().is_ok());
}
