//! A connection on which a name may be held, or that another call may close, is not used again.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind, LeasePolicy, LockGuard};
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, open, start, start_own, waiters};

pub(crate) const CASES: &[Case] = cases![
    refused_release_leaves_no_name_behind,
    refused_release_is_repeated_on_shared_session,
    lost_guards_keep_no_connection,
    late_cancel_spares_next_call_on_connection,
];

/// Limits prepared statements. A connection prepares the statement of a release for its first release;
/// the connection that opened the store has done so.
fn limit_prepared(server: &MySqlServer, most: u32) {
    let set = format!("SET GLOBAL max_prepared_stmt_count = {most}");
    server.execute(&set).unwrap();
}

fn held(server: &MySqlServer) -> usize {
    server.held().unwrap().len()
}

fn is_refused(guard: LockGuard) -> bool {
    let Err(error) = guard.release() else {
        return false;
    };
    assert!(error.to_string().contains("1461"), "{error:?}");
    true
}

fn refused_release_leaves_no_name_behind(kind: MySqlKind) {
    let server = start_own(kind);
    let keeper = open(&server, "");
    let _first = keeper.lock("first").unwrap();
    let guard = keeper.lock("a").unwrap();
    limit_prepared(&server, 0);
    assert!(is_refused(guard));
    until("the name is free", || held(&server) == 1);
    limit_prepared(&server, 1_000);
    let guard = keeper.lock("a").unwrap();
    assert!(open(&server, "").try_lock("a").unwrap().is_none());
    guard.release().unwrap();
    assert_eq!(held(&server), 1);
}

fn refused_release_is_repeated_on_shared_session(kind: MySqlKind) {
    let server = start_own(kind);
    let keeper = open(&server, "pool_size=4");
    let [first, second, third, fourth] =
        ["a", "b", "c", "d"].map(|name| keeper.lock(name).unwrap());
    assert_eq!(server.sessions().unwrap().len(), 2, "two names on each");
    limit_prepared(&server, 0);
    assert_ne!(is_refused(third), is_refused(fourth));
    limit_prepared(&server, 1_000);
    until("both names are free", || held(&server) == 2);
    for guard in [first, second] {
        guard.ensure_held().unwrap();
        guard.release().unwrap();
    }
    until("all is free", || held(&server) == 0);
}

fn lost_guards_keep_no_connection(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "pool_size=2");
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_secs(1),
    });
    let mut lost = Vec::new();
    for name in ["a", "b", "c"] {
        let guard = keeper.acquire(name, &fixed).unwrap().unwrap();
        guard.lost_signal().wait(WAIT_LIMIT);
        until("the server has freed the name", || held(&server) == 0);
        lost.push(guard);
    }
    until("all connections are free", || {
        let two = keeper
            .try_lock("d")
            .and_then(|one| Ok((one, keeper.try_lock("e")?)));
        two.is_ok()
    });
    for guard in lost {
        guard.ensure_held().unwrap_err();
    }
}

/// Callbacks of a cancellation run one after another. The one that closes the connection runs after the
/// wait has ended.
fn late_cancel_spares_next_call_on_connection(kind: MySqlKind) {
    let server = start(kind);
    let holder = open(&server, "").lock("a").unwrap();
    let keeper = open(&server, "pool_size=1");
    let (cancel, (blocked, is_blocked), (go, gone)) = (CancelToken::new(), channel(), channel());
    let gone = std::sync::Mutex::new(gone);
    let _first = cancel.on_cancel(move || {
        blocked.send(()).unwrap();
        gone.lock().unwrap().recv().unwrap();
    });
    let waiter = {
        let (keeper, options) = (keeper.clone(), AcquireOptions::new().cancel(&cancel));
        thread::spawn(move || keeper.acquire("a", &options.wait(WAIT_LIMIT)).map(drop))
    };
    until("the keeper waits in the server", || waiters(&server) == 1);
    let canceller = thread::spawn(move || cancel.cancel());
    is_blocked.recv_timeout(WAIT_LIMIT).unwrap();
    holder.release().unwrap();
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let guard = keeper.lock("mine").unwrap();
    go.send(()).unwrap();
    canceller.join().unwrap();
    assert!(guard.renew().is_ok(), "the session is open");
    assert_eq!(held(&server), 1);
}
