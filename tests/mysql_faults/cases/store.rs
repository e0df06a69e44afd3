//! A server, what stands in it, and people who besiege it.

use std::time::Duration;

use lockkeeper::{ErrorKind, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, MySqlSession};

use crate::rig::{PATIENCE, Waiting, Witness, until};

pub(super) fn start(kind: MySqlKind) -> MySqlServer {
    MySqlServer::start(kind, &MySqlOptions::new()).unwrap()
}

/// With time for an answer on a busy machine, where `keys` do not say it.
pub(super) fn open(url: &str, keys: &str) -> LockKeeper {
    let patient = if keys.contains("response_timeout") {
        ""
    } else {
        "&response_timeout=5s"
    };
    lockkeeper::open(&format!("{url}?{keys}{patient}")).unwrap()
}

/// The sessions that wait for the name.
pub(super) fn waiting_for(server: &MySqlServer, name: &str) -> Vec<MySqlSession> {
    waiting_among(server.sessions().unwrap(), name)
}

/// Those of the sessions that wait for the name.
pub(super) fn waiting_among(mut sessions: Vec<MySqlSession>, name: &str) -> Vec<MySqlSession> {
    let quoted = format!("'default:{name}'");
    sessions.retain(|session| {
        let statement = session.statement.as_deref().unwrap_or_default();
        session.state == "User lock" && statement.contains(&quoted)
    });
    sessions
}

/// The session that holds the name.
pub(super) fn holder_of(server: &MySqlServer, name: &str) -> Option<u64> {
    let sql = format!("SELECT IS_USED_LOCK('default:{name}')");
    let id = server.value(&sql).unwrap()?;
    Some(id.parse().unwrap())
}

/// All keepers are gone: no connection of theirs is left, and so no lock.
#[track_caller]
pub(super) fn settled(server: &MySqlServer) {
    until("nobody is connected", || {
        server.sessions().unwrap().is_empty()
    });
}

/// Whether the server knows afterwards who held what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Kept,
    Lost,
}

/// One holds, three processes' worth of keepers wait, and then the fault.
#[track_caller]
pub(super) fn besieged(kind: MySqlKind, memory: Memory, fault: impl FnOnce(&MySqlServer)) {
    let server = start(kind);
    let witness = Witness::new(memory == Memory::Kept);
    // Time enough for its release to be answered, whatever the server does.
    let url = format!("{}?ttl=9s&response_timeout=10s", server.url());
    let holder = lockkeeper::open(&url).unwrap();
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiting: Vec<_> = (1..=3)
        .map(|number| {
            let waiting = Waiting::start(&url, Duration::from_secs(25), &witness);
            until("it stands in line", || {
                waiting_for(&server, "a").len() == number
            });
            waiting
        })
        .collect();
    fault(&server);
    let first = held.token();
    if memory == Memory::Lost {
        // At its next renewal, not only when its time is over.
        assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
        assert_eq!(held.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(held.release().unwrap(), Released::AlreadyLost);
    } else {
        assert!(held.is_held());
        assert_eq!(held.release().unwrap(), Released::Done);
    }
    for waiting in waiting {
        let token = waiting.answer().expect("it is granted in the end");
        assert!(token > first.get());
    }
    drop(holder);
    settled(&server);
}
