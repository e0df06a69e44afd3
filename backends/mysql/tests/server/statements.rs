//! What the server makes of the statements of locks, and of those that it refuses.

use lockkeeper_core::LockGuard;
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases, until};

use crate::store::{Case, open, start, start_own};

pub(crate) const CASES: &[Case] = cases![
    columns_are_evaluated_in_order,
    refused_release_leaves_no_name_behind,
    refused_release_is_repeated_on_shared_session,
];

/// A batch relies on it: the names that it releases are released before it takes others.
fn columns_are_evaluated_in_order(kind: MySqlKind) {
    let server = start(kind);
    let mut client = server.client().unwrap();
    let sql = "SELECT GET_LOCK('a', 0), RELEASE_LOCK('a'), IS_USED_LOCK('a'), GET_LOCK('a', 0), IS_USED_LOCK('a') = CONNECTION_ID(), RELEASE_LOCK('a'), RELEASE_LOCK('a')";
    let rows = client.rows(sql).unwrap();
    let columns: Vec<_> = rows[0].iter().map(Option::as_deref).collect();
    let one = Some("1");
    assert_eq!(columns, [one, one, None, one, one, one, None]);
}

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
