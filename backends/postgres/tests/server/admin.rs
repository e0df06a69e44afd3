//! Administration, on servers where other clients take advisory locks, too.

use std::thread;

use lockkeeper_core::{ErrorKind, Finding, HeldName, LockKeeper, LockName, Mode, Severity};
use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer, cases, until};

use crate::checks::soon;
use crate::store::{Case, open, start, start_own, try_open};

pub(crate) const CASES: &[Case] = cases![
    holder_and_mode_are_shown,
    thousands_of_locks_of_one_session_are_listed,
    locks_of_other_programs_are_not_shown,
    names_that_are_not_shown_are_hashes,
    another_user_needs_rights_for_names_and_sessions,
    nothing_of_a_mark_is_run,
    doctor_finds_what_breaks_locks,
];

fn listed(keeper: &LockKeeper) -> Vec<HeldName> {
    keeper.admin().unwrap().held(None, soon()).unwrap()
}

fn asked(keeper: &LockKeeper, name: &str) -> Vec<HeldName> {
    let name = LockName::new(name).unwrap();
    keeper.admin().unwrap().held(Some(&name), soon()).unwrap()
}

fn holder_and_mode_are_shown(kind: PostgresKind) {
    let server = start(kind);
    let (holding, asking) = (open(&server, ""), open(&server, ""));
    let _exclusive = holding.lock("a b").unwrap();
    let _shared = holding.lock_shared("b").unwrap();
    let held = listed(&asking);
    let shown: Vec<_> = held
        .iter()
        .map(|held| (&*held.name, held.mode, held.is_whole))
        .collect();
    assert_eq!(
        shown,
        [("a b", Mode::Exclusive, true), ("b", Mode::Shared, true)]
    );
    for held in held {
        assert_eq!(held.holder.pid, Some(std::process::id()));
        assert_eq!(held.holder.host.as_deref(), Some("127.0.0.1"));
        assert_eq!(asked(&asking, &held.name), [held]);
    }
}

fn thousands_of_locks_of_one_session_are_listed(kind: PostgresKind) {
    const LOCKS: usize = 20_000;
    let options = PostgresOptions::new().config("max_locks_per_transaction", "128");
    let server = PostgresServer::start(kind, &options).unwrap();
    let (holding, asking) = (
        open(&server, "pool_size=1&ttl=1h&wait=10m&response_timeout=5m"),
        open(&server, ""),
    );
    let name = |at| format!("a name of some length, so that the session shows few of them: {at}");
    let _held = holding.lock_all((0..LOCKS).map(name)).unwrap();
    let held = listed(&asking);
    assert_eq!(held.len(), LOCKS);
    assert!(held.iter().any(|it| it.is_whole));
}

fn locks_of_other_programs_are_not_shown(kind: PostgresKind) {
    let server = start(kind);
    let asking = open(&server, "");
    thread::scope(|scope| {
        let other = "SELECT pg_advisory_lock(7), pg_sleep(600) --lockkeeper default:a";
        let ended = scope.spawn(|| server.execute(other));
        let holder = "SELECT pid FROM pg_locks WHERE objsubid = 1 AND objid = 7";
        until("the other program holds its lock", || {
            !server.value(holder).unwrap().is_empty()
        });
        assert_eq!(listed(&asking), []);
        let end = format!("SELECT pg_terminate_backend(({holder}))");
        server.execute(&end).unwrap();
        ended.join().unwrap().unwrap_err();
    });
}

/// A statement has room for some 1,000 bytes of names.
fn names_that_are_not_shown_are_hashes(kind: PostgresKind) {
    let server = start(kind);
    let (holding, asking) = (open(&server, "pool_size=2"), open(&server, ""));
    let name = |number: usize| format!("{number}{}", "x".repeat(400));
    let _held: Vec<_> = (0..4)
        .map(|number| holding.lock(name(number)).unwrap())
        .collect();
    let held = listed(&asking);
    assert_eq!(held.len(), 4, "{held:?}");
    assert!(
        held.iter()
            .any(|held| !held.is_whole && held.name.starts_with('~'))
    );
    for number in 0..4 {
        assert_eq!(asked(&asking, &name(number)).len(), 1, "{number}");
    }
    let elsewhere = open(&server, "namespace=elsewhere");
    assert_eq!(listed(&elsewhere), []);
}

fn another_user_needs_rights_for_names_and_sessions(kind: PostgresKind) {
    let server = start_own(kind);
    server
        .execute("CREATE ROLE other LOGIN PASSWORD 's3cret'")
        .unwrap();
    // pg_hba.conf lets this user in by the socket.
    let socket = server.socket().display().to_string();
    let url = format!("postgres:?socket={socket}&user=other&password=s3cret&db=shop");
    let holding = open(&server, "");
    let _held = holding.lock("a").unwrap();
    let asking = try_open(&url).unwrap();
    let shown = || -> (String, bool) {
        let held = listed(&asking).remove(0);
        (held.name, held.is_whole)
    };
    let unlock = || found(&asking, "unlock").what;
    assert!(!shown().1, "{:?}", shown());
    assert_eq!(asked(&asking, "a").len(), 1);
    let free = || {
        let held = listed(&asking).remove(0);
        asking.admin().unwrap().force_release(&held, soon())
    };
    assert_eq!(free().unwrap_err().kind(), ErrorKind::PermissionDenied);
    server.execute("GRANT pg_read_all_stats TO other").unwrap();
    assert_eq!(shown(), ("a".to_owned(), true));
    let own = "its own locks and those of its roles";
    assert!(unlock().contains(own), "{}", unlock());
    server.execute("GRANT pg_signal_backend TO other").unwrap();
    let others = "all users but superusers";
    assert!(unlock().contains(others), "{}", unlock());
    assert!(free().unwrap());
    server.execute("ALTER ROLE other SUPERUSER").unwrap();
    assert!(unlock().contains("all users (unlock)"), "{}", unlock());
}

fn nothing_of_a_mark_is_run(kind: PostgresKind) {
    let server = start(kind);
    let asking = open(&server, "");
    for mark in ["", "1", "1 2", "1 2 x", "1; DROP TABLE t 2 3"] {
        let held = HeldName::new("a", mark);
        let error = asking.admin().unwrap().force_release(&held, soon());
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidValue, "{mark}");
    }
}

/// Returns what an examination found about a topic.
pub(crate) fn found(keeper: &LockKeeper, topic: &str) -> Finding {
    let mut findings = keeper.admin().unwrap().examine(soon()).unwrap();
    let found = findings.iter().position(|found| found.topic == topic);
    findings.swap_remove(found.unwrap_or_else(|| panic!("{findings:?}")))
}

fn doctor_finds_what_breaks_locks(kind: PostgresKind) {
    let server = start_own(kind);
    let severity = |topic| found(&open(&server, ""), topic).severity;
    assert_eq!(severity("idle_session_timeout"), Severity::Fine);
    server
        .execute("ALTER ROLE keeper CONNECTION LIMIT 5")
        .unwrap();
    assert_eq!(severity("connections"), Severity::Warning);
}
