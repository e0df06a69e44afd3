//! The cases of Consul alone.

use libtest_mimic::Trial;
use lockkeeper::{ErrorKind, WaitOutcome};
use lockkeeper_testkit::{
    ConsulCluster, ConsulKind, ConsulOptions, ConsulServer, TestServer as _, suite, until,
};

use crate::common::cluster::{KEYS, assert_replaced, end, kill, member_fails, open, stop};
use crate::common::{WAIT_LIMIT, Witness, assert_unreadable, opened};

/// The holder's lease does not outlive what happens.
const SHORT: &str = "ttl=6s&response_timeout=1s&connect_timeout=1s&wait=25s";

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [suite::Case<ConsulKind>; 7] = [
        ("leader_killed", |kind| member_fails(&start(kind), 0, kill)),
        ("leader_stopped", |kind| member_fails(&start(kind), 0, stop)),
        ("leader_ended", |kind| member_fails(&start(kind), 0, end)),
        ("stopped_leader_resumes", stopped_leader_resumes),
        ("session_destroyed", session_destroyed),
        ("token_withdrawn", token_withdrawn),
        ("bytes_in_an_entry", bytes_in_an_entry),
    ];
    suite::trials(cases)
}

fn start(kind: ConsulKind) -> ConsulCluster {
    ConsulCluster::start(kind, &ConsulOptions::new()).unwrap()
}

/// The holder asks only the former leader, which takes itself for the leader when it resumes: what it says of the session
/// then must not prolong the guard, since the new leader has ended the session.
fn stopped_leader_resumes(kind: ConsulKind) {
    let cluster = start(kind);
    let leader = cluster.leader(&[]).unwrap();
    let holder = open(&cluster.url_of(leader), SHORT);
    let rival = open(&cluster.url(leader + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    cluster.member(leader).stop().unwrap();
    // The witness checks that the former holder knows of its loss by now.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    cluster.member(leader).cont().unwrap();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    assert_replaced(&holder, held, next);
}

/// An operator ends the session behind the library's back: the lock is free at once, and the holder learns of it at its
/// next renewal. Its token is the smaller one.
fn session_destroyed(kind: ConsulKind) {
    let server = ConsulServer::start(kind, &ConsulOptions::new()).unwrap();
    let url = format!("{}?", server.url());
    let (holder, rival) = (
        opened(&format!("{url}{SHORT}")),
        opened(&format!("{url}{KEYS}")),
    );
    let held = holder.lock("a").unwrap();
    server.end_lease("default", "a").unwrap();
    let next = rival.lock("a").unwrap();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    drop(held);
    assert!(next.is_held());
    // The next lock has a new session.
    drop(holder.lock("b").unwrap());
}

/// The token of a holder is deleted: the holder's guard is lost in time, and nothing is granted.
fn token_withdrawn(kind: ConsulKind) {
    const MASTER: &str = "8f246b77-f3e1-ff88-5b48-8ec93abf3e05";
    let server = ConsulServer::start(kind, &ConsulOptions::new().acl(MASTER)).unwrap();
    let call = |path: &str, body: &str| server.call("PUT", path, Some(MASTER), body);
    let policy = r#"{ "Policies": [{ "ID": "00000000-0000-0000-0000-000000000001" }] }"#;
    until("the ACLs are there", || {
        call("/v1/acl/token", policy).is_ok()
    });
    let token = call("/v1/acl/token", policy).unwrap();
    let (secret, accessor) = (token["SecretID"].as_str(), token["AccessorID"].as_str());
    let open = |token: &str, keys| opened(&format!("{}?acl_token={token}&{keys}", server.url()));
    let (holder, rival) = (open(secret.unwrap(), SHORT), open(MASTER, KEYS));
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let path = format!("/v1/acl/token/{}", accessor.unwrap());
    server.call("DELETE", &path, Some(MASTER), "").unwrap();
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let error = holder.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

/// The value that another program has written is the byte 255.
fn bytes_in_an_entry(kind: ConsulKind) {
    let server = ConsulServer::start(kind, &ConsulOptions::new()).unwrap();
    let keeper = opened(&format!("{}?{KEYS}", server.url()));
    let txn =
        r#"[{ "KV": { "Verb": "set", "Key": "lockkeeper/default/lock/a.", "Value": "/w==" } }]"#;
    server.call("PUT", "/v1/txn", None, txn).unwrap();
    assert_unreadable(&keeper, &["a"]);
}
