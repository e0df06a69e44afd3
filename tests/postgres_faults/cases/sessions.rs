//! A session that crashes.

use std::process::Command;

use lockkeeper_testkit::{PostgresKind, until};

use super::Case;
use super::store::start;
use crate::faults::{Memory, contend_during};
use crate::session_server::SessionServer as _;

pub(super) const CASES: &[Case] = &[("a_crashed_session_ends_all", a_crashed_session_ends_all)];

/// After the crash of one session, the server ends all others and recovers.
fn a_crashed_session_ends_all(kind: PostgresKind) {
    let server = start(kind);
    contend_during(&server, Memory::Lost, || {
        let session = server.holders(&["a"]).pop_first().unwrap().to_string();
        let killed = Command::new("kill").args(["-9", &session]).status();
        assert!(killed.unwrap().success());
        until("the server has recovered", || server.sessions().is_ok());
    });
}
