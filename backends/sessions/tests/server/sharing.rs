//! What locks cost the server, and names that share a session.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard, Released, WaitOutcome};
use lockkeeper_testkit::{StoreKind, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, connections, holders, leftovers, open, start, until_waiting};

pub(crate) const CASES: &[Case] = cases![
    lock_costs_two_statements,
    wait_takes_one_statement_beside_attempts,
    hundreds_of_names_on_few_connections,
    exhausted_pool_has_its_own_error,
    closed_connection_is_replaced,
    lease_expires_on_session_in_use,
];

fn lock_costs_two_statements(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "");
    // Not dropped: a drop cuts a release short on a busy machine.
    let lock = || keeper.lock("seat:42").unwrap().release().unwrap();
    lock();
    // On a busy machine, a lock may be held until its renewal, which is one more.
    until(
        "100 locks cost one to acquire and one to release each",
        || {
            let before = keeper.usage().unwrap().commands;
            for _ in 0..100 {
                lock();
            }
            let cost = keeper.usage().unwrap().commands - before;
            assert!(cost >= 200, "{cost}");
            cost == 200
        },
    );
}

fn wait_takes_one_statement_beside_attempts(kind: StoreKind) {
    let server = start(kind);
    let (keeper, waiter) = (open(&*server, ""), open(&*server, ""));
    waiter.lock("a").unwrap().release().unwrap();
    let held = keeper.lock("a").unwrap();
    let commands = || waiter.usage().unwrap().commands;
    let before = commands();
    let next = thread::scope(|scope| {
        let wait = scope.spawn(|| waiter.try_lock_for("a", WAIT_LIMIT).unwrap());
        until_waiting(&*server, &["a"], 1);
        held.release().unwrap();
        wait.join().unwrap().expect("it is free")
    });
    // The wait makes an attempt of its own before.
    assert!(commands() <= before + 3);
    next.release().unwrap();
}

fn hundreds_of_names_on_few_connections(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "ttl=12s");
    let names: Vec<_> = (0..300).map(|n| format!("seat:{n}")).collect();
    let guards: Vec<_> = names.iter().map(|n| keeper.lock(n).unwrap()).collect();
    assert!(connections(&*server) <= 8, "{:?}", keeper.usage());
    // All are renewed beyond the first ttl.
    let first = guards[0].lost_signal();
    assert_eq!(first.wait(Duration::from_secs(13)), WaitOutcome::TimedOut);
    for guard in &guards {
        assert!(guard.is_held(), "{guard:?}");
    }
    let other = open(&*server, "");
    for name in names.iter().step_by(100) {
        assert!(other.try_lock(name).unwrap().is_none(), "{name}");
    }
    assert_eq!(leftovers(&*server), 300);
    // The pool has a connection left for a wait.
    let theirs = other.lock("theirs").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("theirs", WAIT_LIMIT));
        until_waiting(&*server, &["theirs"], 1);
        assert_eq!(theirs.release().unwrap(), Released::Done);
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
    for guard in guards {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    until("all is free", || leftovers(&*server) == 0);
    drop((keeper, other));
    until("the connections are closed", || connections(&*server) == 0);
}

fn exhausted_pool_has_its_own_error(kind: StoreKind) {
    let server = start(kind);
    let holder = open(&*server, "");
    let held: Vec<_> = ["a", "b"].map(|name| holder.lock(name).unwrap()).into();
    let keeper = open(&*server, "pool_size=3");
    let own = keeper.lock("own").unwrap();
    thread::scope(|scope| {
        for name in ["a", "b"] {
            let keeper = &keeper;
            scope.spawn(move || drop(keeper.try_lock_for(name, WAIT_LIMIT).unwrap().unwrap()));
        }
        until_waiting(&*server, &["a", "b"], 2);
        // A free name is locked on the session that holds a name already.
        drop(keeper.try_lock("c").unwrap().unwrap());
        let error = keeper.acquire("own 2", &fixed(Duration::from_secs(5)));
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
        connections(&*server) == 3 + usize::try_from(holders).unwrap()
    });
    drop(own);
}

fn fixed(ttl: Duration) -> AcquireOptions {
    AcquireOptions::new().lease(LeasePolicy::Fixed { ttl })
}

/// An idle connection ends with the time that its session may be idle, which no caller notices.
fn closed_connection_is_replaced(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "ttl=3s");
    let hold = || ["a", "b", "c"].map(|name| keeper.lock(name).unwrap());
    // Not dropped: the server would free a name whose release is not over.
    let release = |guard: LockGuard| {
        guard.release().unwrap();
    };
    hold().into_iter().for_each(release);
    until("the server closes the idle connections", || {
        connections(&*server) == 0
    });
    release(keeper.try_lock("a").unwrap().unwrap());
    release(keeper.lock("b").unwrap());
    // An operator kills all connections.
    hold().into_iter().for_each(release);
    server.reset().unwrap();
    drop(keeper.try_lock("a").unwrap().unwrap());
}

/// The other names of the process keep the session alive.
fn lease_expires_on_session_in_use(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "ttl=6s&pool_size=2");
    let kept = keeper.lock("kept").unwrap();
    let ends = keeper.acquire("ends", &fixed(Duration::from_secs(6)));
    let ends = ends.unwrap().unwrap();
    assert_eq!(leftovers(&*server), 2);
    let sessions = holders(&*server, &["kept", "ends"]);
    assert_eq!(sessions.len(), 1, "the names share a session");
    let other = open(&*server, "");
    let next = other.lock("ends").unwrap();
    assert!(!ends.is_held());
    assert!(kept.is_held());
    assert_eq!(ends.release().unwrap(), Released::AlreadyLost);
    assert!(next.is_held() && next.token().get() > 0);
    let kept_on = kept.lost_signal().wait(Duration::from_secs(3));
    assert_eq!(kept_on, WaitOutcome::TimedOut);
    assert_eq!(kept.release().unwrap(), Released::Done);
}
