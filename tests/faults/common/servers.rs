//! Servers that restart or end, and programs that find none.

use std::time::Duration;

#[cfg(feature = "etcd")]
use lockkeeper::{AcquireOptions, LeasePolicy};
use lockkeeper::{ErrorKind, Released, WaitOutcome};
use lockkeeper_testkit::{StoreKind, TestServer};

use super::{Case, Keepers as _, WAIT_LIMIT, Witness, fake_server, refused, start};

pub(super) fn cases() -> Vec<Case> {
    vec![
        ("server_restarted_while_waiting", |kind| {
            let server = start(kind);
            let memory = Memory::after_restart(&*server);
            contend_during(&*server, memory, || server.restart().unwrap());
        }),
        ("server_killed_while_held", server_killed_while_held),
        ("opening_without_server", opening_without_server),
    ]
}

/// Whether the server knows its leases after a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    Lost,
}

impl Memory {
    /// Returns whether a server knows its leases after a restart.
    fn after_restart(server: &dyn TestServer) -> Self {
        match server.facts().is_kept_by_restart {
            true => Self::Kept,
            false => Self::Lost,
        }
    }
}

/// One keeper holds `a`, and three wait for it during the fault. Then each of them is granted it.
#[track_caller]
pub(crate) fn contend_during(server: &dyn TestServer, memory: Memory, fault: impl FnOnce()) {
    let witness = Witness::new(memory == Memory::Kept);
    // Time enough for replies, whatever the fault is. A restart is not to outlast a lease that is kept.
    let ttl = if memory == Memory::Kept { 60 } else { 6 };
    let keys = &format!("ttl={ttl}s&response_timeout=10s");
    let holder = server.open(keys);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(100);
    let waiters = server.queue_waiters::<3>(server.own_addr(), keys, wait, &witness);
    fault();
    let first = held.token();
    if memory == Memory::Lost {
        assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
        assert_eq!(held.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(held.release().unwrap(), Released::AlreadyLost);
    } else {
        assert!(held.is_held());
        assert_eq!(held.release().unwrap(), Released::Done);
    }
    for waiter in waiters {
        assert!(waiter.answer().expect("it is granted in the end") > first.get());
    }
    drop(holder);
    server.assert_clean();
}

/// Checks that the next renewal notices that the server lost all leases.
#[cfg(feature = "etcd")]
#[track_caller]
pub(crate) fn lose_all_leases(server: &dyn TestServer, lose: impl FnOnce()) {
    let [holder, rival] = [(); 2].map(|()| server.open("ttl=6s"));
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    });
    let held = holder.lock("a").unwrap();
    let other = holder.acquire("b", &fixed).unwrap().unwrap();
    lose();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    // Its own deadline is 60 s away.
    assert_eq!(other.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!other.is_held());
    for (lost, name) in [(held, "a"), (other, "b")] {
        let next = rival.lock(name).unwrap();
        assert!(next.token() > lost.token());
        assert_eq!(lost.release().unwrap(), Released::AlreadyLost);
        assert!(next.is_held());
        assert_eq!(next.release().unwrap(), Released::Done);
    }
    drop((holder, rival));
    server.assert_clean();
}

fn server_killed_while_held(kind: StoreKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let keeper = server.open("ttl=6s");
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(10);
    let waiter = server.queue_waiter(server.own_addr(), "", wait, &witness);
    server.kill();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert_ne!(waiter.fails(), ErrorKind::TimedOut);
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.restart().unwrap();
    let next = keeper.lock("a").unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    server.assert_clean();
}

fn opening_without_server(kind: StoreKind) {
    let server = start(kind);
    let addr = server.own_addr().to_string();
    server.kill();
    let unavailable = ErrorKind::Unavailable;
    for url in urls_at(&*server, &addr) {
        refused(&url, unavailable, &[&addr, "running"]);
        let keeper = lockkeeper::open(&format!("{url}fallback=memory:")).unwrap();
        assert_eq!(keeper.backend(), "memory");
    }
    if let Some(url) = server.socket_url() {
        refused(&url, unavailable, &["/lk-"]);
    }
    // No packet returns from this address (RFC 5737); some networks say so at once.
    let [silent, _] = urls_at(&*server, "192.0.2.1:6379");
    refused(
        &format!("{silent}connect_timeout=300ms"),
        unavailable,
        &["192.0.2.1"],
    );
    let [unknown, _] = urls_at(&*server, "name.invalid");
    refused(&unknown, unavailable, &["name.invalid"]);
    // It takes the connection, and says nothing.
    let mute = fake_server(b"", b"", 0);
    for url in urls_at(&*server, &mute) {
        let url = format!("{url}connect_timeout=2s&response_timeout=2s");
        refused(&url, unavailable, &[&mute]);
    }
    server.restart().unwrap();
}

/// Returns the URLs of an address without and with TLS, ready for `key=value`.
pub(super) fn urls_at(server: &dyn TestServer, addr: &str) -> [String; 2] {
    [false, true].map(|tls| server.url_at(addr, tls))
}
