//! The cases of PostgreSQL alone.

use std::process::Command;

use libtest_mimic::Trial;
use lockkeeper_testkit::{PostgresKind, PostgresServer, Shared, TestServer as _, suite, until};

use crate::common::{Memory, contend_during};

pub(crate) fn trials() -> Vec<Trial> {
    suite::trials::<PostgresKind>([(
        "a_crashed_session_ends_all",
        a_crashed_session_ends_all as _,
    )])
}

/// After the crash of one session, the server ends all others and recovers.
fn a_crashed_session_ends_all(kind: PostgresKind) {
    let server = Shared::<PostgresServer>::take(kind).unwrap();
    contend_during(&*server, Memory::Lost, || {
        let mut holders = server.holding_sessions("default", &["a"]).unwrap();
        let session = holders.pop_first().unwrap().to_string();
        let killed = Command::new("kill").args(["-9", &session]).status();
        assert!(killed.unwrap().success());
        until("the server has recovered", || server.sessions().is_ok());
    });
}
