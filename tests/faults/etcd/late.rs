//! Requests that are carried out after their repetition has succeeded, and those whose reply is lost.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::{ErrorKind, LockKeeper, Released};
use lockkeeper_testkit::{
    EtcdKey, EtcdKind, EtcdServer, Fault, Proxy, Shared, TestServer as _, cases, until,
};

use super::Case;
use super::loss::set_alarm;
use super::relay::{Held, relay};
use crate::common::{Keepers, WAIT_LIMIT, opened, share};

pub(super) const CASES: &[Case] = cases![
    late_grant_leaves_the_key,
    late_move_in_the_queue_leaves_the_key,
    late_renewal_leaves_the_key,
    lost_reply_to_a_renewal_keeps_the_lock,
    full_database_keeps_the_retired_lease,
    lost_reply_to_an_attempt_finds_its_grant,
    unreadable_reply_leaves_no_key_for_long,
    lost_reply_to_a_permit_keeps_within_its_slots,
    key_on_another_lease_is_moved_again,
    waiter_that_fails_on_its_turn_leaves_no_key,
    grant_without_a_base_leaves_no_key,
    resumption_waits_for_a_release_that_is_lost,
];

/// Every request about a lock of the namespace has it: `lockkeeper/default/l/` in base64.
pub(super) const LOCK_REQUEST: &str = "bG9ja2tlZXBlci9kZWZhdWx0L2wv";
/// Only the request of a waiter whose turn may have come has it.
const ON_TURN: &str = "GREATER";
/// A request for `lockkeeper/default/l/a/w…` that writes `{"held":fals…`, in base64.
const WAITS: [&str; 2] = ["bG9ja2tlZXBlci9kZWZhdWx0L2wvYS93", "eyJoZWxkIjpmYWxz"];
/// Each request about the lock `a` has it, and none about another one: `lockkeeper/default/l/a/…`, in base64.
pub(super) const OF_A: &str = "bG9ja2tlZXBlci9kZWZhdWx0L2wvYS";
/// Only the request that raises the base of the epochs has it, where there are no permits.
const RAISES_BASE: &str = "LESS";
/// Only the request that grants a permit beside other ones has it.
const PERMIT: &str = "mod_revision";

struct Rig {
    keeper: LockKeeper,
    held: Arc<Mutex<Held>>,
    proxy: Proxy,
    server: Shared<EtcdServer>,
}

impl Rig {
    /// With this ttl no renewal is due. A busy machine replies within this time.
    fn start(kind: EtcdKind) -> Self {
        Self::with(kind, "ttl=10m&response_timeout=2s&connect_timeout=10s")
    }

    fn with(kind: EtcdKind, keys: &str) -> Self {
        let server = share::<EtcdServer>(kind);
        let proxy = Proxy::new(server.addr()).unwrap();
        let held = Arc::default();
        let url = server.url_via(relay(&held, proxy.addr()));
        let keeper = opened(&format!("{url}{keys}"));
        Self {
            held,
            server,
            proxy,
            keeper,
        }
    }

    fn key(&self) -> Vec<EtcdKey> {
        self.server.keys("lockkeeper/default/l/a/").unwrap()
    }

    /// Makes the provider bind further keys to another lease.
    fn retire_lease(&self) {
        self.proxy.once(LOCK_REQUEST, Fault::DropRequests);
        let dropped = || self.proxy.counts().dropped_requests;
        let before = dropped();
        // The keeper may ask again, with another lease. The reply to a drop's release would be awaited by the next request.
        if let Ok(Some(other)) = self.keeper.try_lock("b") {
            other.release().unwrap();
        }
        assert!(dropped() > before);
    }

    /// Makes the provider bind further waiters' keys to another lease.
    fn retire_lease_of_waiters(&self, rival: &LockKeeper) {
        let _held = rival.lock("b").unwrap();
        let dropped = || self.proxy.counts().dropped_requests;
        let before = dropped();
        self.proxy.once(WAITS[1], Fault::DropRequests);
        // On a busy machine, an acquisition may end before it sends that request.
        until("a request to wait is lost", || {
            drop(self.keeper.try_lock_for("b", Duration::from_millis(1)));
            dropped() > before
        });
    }

    /// Holds back the next request that contains all needles.
    fn hold(&self, needles: &'static [&'static str]) {
        self.held.lock().unwrap().needles.push(needles);
    }

    /// Sends the request that was held back to the server, and checks that it writes nothing.
    fn carry_out(&self) {
        let requests = std::mem::take(&mut self.held.lock().unwrap().requests);
        let [request] = &requests[..] else {
            panic!("one request is held: {requests:?}");
        };
        let text = str::from_utf8(request).unwrap();
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        let body = serde_json::from_str(body).unwrap();
        let reply = self.server.call("/v3/kv/txn", &body).unwrap();
        assert!(!reply.to_string().contains("response_put"), "{reply:#}");
    }
}

fn late_grant_leaves_the_key(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let rival = Keepers::open(&*rig.server, "ttl=10m");
    let guard = rig.server.lock_after_fault(&rig.keeper, &rival, || {
        rig.hold(&[ON_TURN]);
    });
    rig.carry_out();
    guard.renew().unwrap();
}

fn late_renewal_leaves_the_key(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let guard = rig.keeper.lock("a").unwrap();
    rig.retire_lease();
    rig.hold(&[LOCK_REQUEST]);
    // Its repetition succeeds.
    guard.renew().unwrap();
    rig.retire_lease();
    guard.renew().unwrap();
    rig.carry_out();
    guard.renew().unwrap();
}

/// The key of a waiter is moved when the lease of the waiters was retired.
fn late_move_in_the_queue_leaves_the_key(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let rival = Keepers::open(&*rig.server, "ttl=10m");
    let guard = rig.server.lock_after_fault(&rig.keeper, &rival, || {
        rig.hold(&WAITS);
        rig.retire_lease_of_waiters(&rival);
        until("the move is held", || {
            !rig.held.lock().unwrap().requests.is_empty()
        });
    });
    rig.carry_out();
    guard.renew().unwrap();
}

fn lost_reply_to_a_renewal_keeps_the_lock(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let guard = rig.keeper.lock("a").unwrap();
    rig.retire_lease();
    rig.proxy.once(LOCK_REQUEST, Fault::DropReplies);
    guard.renew().unwrap();
    assert!(guard.is_held());
}

/// A full cluster grants no lease, and moves no key to one that it has granted before.
fn full_database_keeps_the_retired_lease(kind: EtcdKind) {
    for has_other_lease in [false, true] {
        let rig = Rig::start(kind);
        let guard = rig.keeper.lock("a").unwrap();
        let written = || rig.key().remove(0).modified;
        let first = written();
        if !has_other_lease {
            set_alarm(&rig.server, "ACTIVATE");
        }
        rig.retire_lease();
        set_alarm(&rig.server, "ACTIVATE");
        guard.renew().unwrap();
        assert_eq!(written(), first);
        set_alarm(&rig.server, "DEACTIVATE");
        guard.renew().unwrap();
        assert_ne!(written(), first);
    }
}

/// The repeated attempt has another key than the one that was granted.
fn lost_reply_to_an_attempt_finds_its_grant(kind: EtcdKind) {
    let rig = Rig::start(kind);
    for round in 0..2 {
        rig.proxy.once(LOCK_REQUEST, Fault::DropReplies);
        let guard = match round {
            0 => rig.keeper.try_lock("a").unwrap(),
            _ => rig.keeper.try_lock_for("a", WAIT_LIMIT).unwrap(),
        };
        let guard = guard.expect("it was granted before");
        assert_eq!(rig.key().len(), 1);
        guard.renew().unwrap();
        assert_eq!(guard.release().unwrap(), Released::Done);
        assert_eq!(rig.key().len(), 0);
    }
}

/// Another lock keeps the lease alive to which the key was bound.
fn unreadable_reply_leaves_no_key_for_long(kind: EtcdKind) {
    const REPLIES: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 500 x\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 429 x\r\nContent-Length: 22\r\n\r\n{\"message\":\"too many\"}",
    ];
    let rig = Rig::with(kind, "ttl=10s&response_timeout=5s&connect_timeout=5s");
    let kept = rig.keeper.lock("b").unwrap();
    for reply in REPLIES {
        rig.held.lock().unwrap().unreadable = Some((OF_A, reply));
        let error = rig.keeper.try_lock("a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        rig.held.lock().unwrap().unreadable = None;
        until("the key has ended", || rig.key().is_empty());
        // Until then, an attempt ends with the error of the one before it.
        let is_back = || rig.keeper.pending_releases() == 0;
        until("the name is given back", is_back);
    }
    assert!(kept.is_held());
}

/// All slots are in use when it asks again, one of them by itself.
fn lost_reply_to_a_permit_keeps_within_its_slots(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let permits = rig.keeper.semaphore("b", 2).unwrap();
    let held = permits.try_acquire().unwrap().expect("a free permit");
    rig.proxy.once(PERMIT, Fault::DropReplies);
    let other = permits.try_acquire().unwrap();
    let other = other.expect("it was granted before");
    assert_eq!((held.slot(), other.slot()), (0, 1));
}

/// An earlier renewal may have bound the key to a lease that was retired since.
fn key_on_another_lease_is_moved_again(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let guard = rig.keeper.lock("a").unwrap();
    let key = rig.key().remove(0);
    rig.server.put(&key.key, &key.value).unwrap();
    let unbound = rig.key().remove(0);
    guard.renew().unwrap();
    assert!(guard.is_held());
    assert!(rig.key().remove(0).modified > unbound.modified);
}

/// Another waiter keeps the lease alive to which its key was bound.
fn waiter_that_fails_on_its_turn_leaves_no_key(kind: EtcdKind) {
    // The refusals end the wait after the response timeout. A short wait could be over before its turn.
    let rig = Rig::with(kind, "ttl=10m&response_timeout=5s&outage=fail");
    let rival = Keepers::open(&*rig.server, "ttl=10m&wait=20s");
    let (held, other) = (rival.lock("a").unwrap(), rival.lock("b").unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.keeper.try_lock_for("b", WAIT_LIMIT));
        until("it waits", || rig.server.queue_length("b") == 1);
        let enters = Arc::new(Barrier::new(2));
        {
            let mut relay = rig.held.lock().unwrap();
            relay.paused = Some((&WAITS, Arc::clone(&enters)));
            relay.refused = Some(ON_TURN);
        }
        let failing = scope.spawn(|| rig.keeper.try_lock_for("a", WAIT_LIMIT));
        enters.wait();
        // So its turn has come when it has entered the queue.
        held.release().unwrap();
        enters.wait();
        assert!(failing.join().unwrap().is_err());
        rig.held.lock().unwrap().refused = None;
        drop(rival.lock("a").unwrap());
        other.release().unwrap();
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
    rig.server.assert_clean();
}

/// The epoch of a grant cannot be told. Another lock keeps the lease alive to which the key was bound.
fn grant_without_a_base_leaves_no_key(kind: EtcdKind) {
    let rig = Rig::with(kind, "ttl=10s&response_timeout=5s");
    rig.server.delete("lockkeeper/").unwrap();
    rig.held.lock().unwrap().refused = Some(RAISES_BASE);
    assert!(rig.keeper.try_lock("a").is_err());
    rig.held.lock().unwrap().refused = None;
    let other = rig.keeper.lock("b").unwrap();
    until("the key has ended", || rig.key().is_empty());
    assert!(other.is_held());
}

/// Until the release is repeated, the lease is still there.
fn resumption_waits_for_a_release_that_is_lost(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let ticket = rig.keeper.lock("a").unwrap().detach().unwrap();
    let guard = rig.keeper.resume(&ticket).unwrap();
    rig.proxy.once(LOCK_REQUEST, Fault::DropRequests);
    drop(guard);
    let resumed = rig.keeper.resume(&ticket);
    assert_eq!(resumed.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(rig.proxy.counts().dropped_requests, 1);
}
