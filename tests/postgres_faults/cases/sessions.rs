//! Sessions and servers that an operator or a crash ends.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::Released;
use lockkeeper_testkit::{PostgresKind, until};

use super::Case;
use super::store::{assert_clean, holders, kill, open, start, waiters};
use crate::faults::{HANG, Memory, contend_during};

pub(super) const CASES: &[Case] = &[
    ("holders_session_killed", holders_session_killed),
    ("waiters_sessions_killed", waiters_sessions_killed),
    ("waiters_statements_cancelled", waiters_statements_cancelled),
    ("a_crashed_session_ends_all", a_crashed_session_ends_all),
    ("two_names_in_opposite_order", two_names_in_opposite_order),
];

fn holders_session_killed(kind: PostgresKind) {
    let server = start(kind);
    contend_during(&server, Memory::Lost, || {
        kill(&server, *holders(&server).first().unwrap());
    });
}

fn waiters_sessions_killed(kind: PostgresKind) {
    let server = start(kind);
    contend_during(&server, Memory::Kept, || {
        let old = waiters(&server, "a");
        assert_eq!(old.len(), 3);
        for session in &old {
            kill(&server, *session);
        }
        until("all wait again", || {
            let now = waiters(&server, "a");
            now.len() == 3 && now.iter().all(|session| !old.contains(session))
        });
    });
}

fn waiters_statements_cancelled(kind: PostgresKind) {
    let server = start(kind);
    contend_during(&server, Memory::Kept, || {
        for session in waiters(&server, "a") {
            server
                .execute(&format!("SELECT pg_cancel_backend({session})"))
                .unwrap();
        }
        until("all wait again", || waiters(&server, "a").len() == 3);
    });
}

/// After the crash of one session, the server ends all others and recovers.
fn a_crashed_session_ends_all(kind: PostgresKind) {
    let server = start(kind);
    contend_during(&server, Memory::Lost, || {
        let session = holders(&server).first().unwrap().to_string();
        let killed = Command::new("kill").args(["-9", &session]).status();
        assert!(killed.unwrap().success());
        until("the server has recovered", || server.sessions().is_ok());
    });
}

/// The server cannot detect this deadlock, since no waiting session holds a lock: the deadlines end it.
fn two_names_in_opposite_order(kind: PostgresKind) {
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
            let answer = answer.join().unwrap().unwrap();
            assert!(answer.is_none(), "the other keeper holds it");
        }
    });
    for guard in holds {
        assert!(guard.is_held());
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keepers);
    assert_clean(&server);
}
