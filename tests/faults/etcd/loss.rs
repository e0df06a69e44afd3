//! Losses that a holder is told of long before its next renewal, and leases that end while others go on.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::admin::Severity;
use lockkeeper::backend::{AcquireRequest, AttemptRequest, Backend, Operation, StoreInfo};
use lockkeeper::backends::etcd;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{
    AcquireOptions, CancelToken, ErrorKind, LeasePolicy, LockGuard, LockKeeper, LockName, Mode,
    WaitOutcome,
};
use lockkeeper_testkit::{
    EtcdKey, EtcdKind, EtcdOptions, EtcdServer, TestServer as _, cases, until,
};

use super::Case;
use super::relay::{Held, relay};
use crate::common::servers::lose_all_leases;
use crate::common::{Keepers, Memory, WAIT_LIMIT, Witness, contend_during, opened, share};

pub(super) const CASES: &[Case] = cases![
    loss_by_new_cluster_is_noticed,
    loss_is_noticed_among_new_waiters,
    waiters_are_told_of_releases,
    locks_are_shown_by_few_requests,
    locks_are_kept_alive_by_few_requests,
    tokens_grow_over_a_raised_base,
    released_name_leaves_one_key,
    waiting_key_outlives_the_next_look,
    first_permit_is_one_write,
    forgotten_fixed_lease_ends,
    full_database_is_told,
    permits_of_a_batch_fail_together,
    cancelled_attempt_fails_no_other,
];

/// With this ttl a renewal is due after all limits of the suite. A busy machine grants many locks within this wait.
fn open_long(server: &EtcdServer) -> LockKeeper {
    Keepers::open(server, "ttl=10m&wait=30s")
}

fn loss_by_new_cluster_is_noticed(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    lose_all_leases(&*server, || server.restart_empty().unwrap());
    contend_during(&*server, Memory::Lost, || server.restart_empty().unwrap());
}

/// Each waiter for another name has the keeper open another stream.
fn loss_is_noticed_among_new_waiters(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let (keeper, operator) = (open_long(&server), open_long(&server));
    let name = |number: usize| format!("other-{number}");
    let _others = operator.lock_all((0..200).map(name)).unwrap();
    let admin = operator.admin().unwrap();
    let is_noticed = |round: usize| {
        let taken = keeper.lock("a").unwrap();
        if round.is_multiple_of(2) {
            let deadline = SystemClock.now() + WAIT_LIMIT;
            let shown = admin.held(Some(taken.name()), deadline).unwrap();
            assert!(
                admin
                    .force_release(shown.first().unwrap(), deadline)
                    .unwrap()
            );
        } else {
            server.delete("lockkeeper/default/l/a/").unwrap();
            server.delete_key("lockkeeper/default/base").unwrap();
        }
        taken.lost_signal().wait(WAIT_LIMIT) == WaitOutcome::Lost
    };
    thread::scope(|scope| {
        let noticed = scope.spawn(|| (0..20).all(is_noticed));
        let mut names = (0..200).cycle().map(name);
        while !noticed.is_finished() {
            // On a busy machine, the server may not reply in time.
            let _ = keeper.try_lock_for(names.next().unwrap(), Duration::from_millis(30));
        }
        assert!(noticed.join().unwrap());
    });
}

/// The server discards requests for watches that it has not read when it begins its reply. The more and the longer they
/// are, the more often that is.
fn waiters_are_told_of_releases(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let rival = open_long(&server);
    let names = [(); 8].map(|()| "n".repeat(100));
    let names: Vec<_> = (0..)
        .zip(names)
        .map(|(at, name)| format!("{name}{at}"))
        .collect();
    for _ in 0..30 {
        let held = Arc::<Mutex<Held>>::default();
        let keeper = opened(&server.url_with(relay(&held, server.addr()), "ttl=10m"));
        let taken = rival.lock_all(&names).unwrap();
        thread::scope(|scope| {
            let keeper = &keeper;
            let waiting = names.iter().map(|name| {
                scope.spawn(move || keeper.try_lock_for(name, WAIT_LIMIT).unwrap().is_some())
            });
            let waiting: Vec<_> = waiting.collect();
            until("all wait, and all watches are confirmed", || {
                let waits = |name: &String| server.queue_length(name) == 1;
                names.iter().all(waits) && held.lock().unwrap().is_watched()
            });
            taken.release().unwrap();
            assert!(waiting.into_iter().all(|it| it.join().unwrap()));
        });
    }
}

/// The opening of the second keeper raises the base of the epochs that are shown.
fn locks_are_shown_by_few_requests(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let keeper = open_long(&server);
    let before = keeper.lock("before").unwrap();
    let operator = open_long(&server);
    let after: Vec<_> = (0..9)
        .map(|number| keeper.lock(format!("after-{number}")).unwrap())
        .collect();
    let commands = || operator.usage().unwrap().commands;
    let first = commands();
    let deadline = SystemClock.now() + WAIT_LIMIT;
    let shown = operator.admin().unwrap().held(None, deadline).unwrap();
    // The keys with the base of now, their lease, and the base of before.
    assert_eq!(commands() - first, 3);
    for guard in after.iter().chain([&before]) {
        let found = shown.iter().find(|it| it.name == guard.name().as_str());
        assert_eq!(found.unwrap().token(), Some(guard.token()));
    }
}

/// A hundred locks are renewed some three times while another one with a fixed lease ends. The server refuses as many
/// operations in one transaction as these renewals would have.
fn locks_are_kept_alive_by_few_requests(kind: EtcdKind) {
    let options = EtcdOptions::new().arg("--max-txn-ops=20");
    let server = EtcdServer::start(kind, &options).unwrap();
    let keeper = Keepers::open(&server, "ttl=6s");
    let held = (0..100).map(|number| keeper.lock(format!("held-{number}")).unwrap());
    let held: Vec<_> = held.collect();
    let ttl = Duration::from_secs(6);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let other = keeper.acquire("other", &fixed).unwrap().unwrap();
    let commands = || keeper.usage().unwrap().commands;
    let before = commands();
    assert_eq!(other.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let asked = commands() - before;
    assert!(held.iter().all(LockGuard::is_held));
    assert!((1..150).contains(&asked), "{asked}");
}

/// Another process raises the base of the epochs while this one has seen the former base.
fn tokens_grow_over_a_raised_base(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let (keeper, reader) = (open_long(&server), open_long(&server));
    let read = reader.lock_shared("read").unwrap();
    let granted = |round: usize| {
        let guard = match round {
            0 => keeper.lock("a").unwrap(),
            1 => keeper.try_lock("a").unwrap().expect("it is free"),
            2 => keeper.try_lock_shared("read").unwrap().expect("it is read"),
            3 => keeper.lock_shared("read").unwrap(),
            _ => {
                let all = keeper.try_lock_all(["a", "c"]).unwrap();
                return all.expect("they are free").token("a").unwrap();
            }
        };
        guard.token()
    };
    for round in 0..5 {
        let before = keeper.lock("b").unwrap().token();
        let raised = server.keys("lockkeeper/default/").unwrap().into_iter();
        let raised = raised.filter(|it| it.key.ends_with("/base"));
        let raised: u64 = raised.map(|it| it.value.parse::<u64>().unwrap()).sum();
        // More than all revisions of this case.
        let raised = raised + 1_000_000;
        let base = format!("{raised:020}");
        server.put("lockkeeper/default/base", &base).unwrap();
        let after = granted(round);
        assert!(
            after.get() - before.get() >= 1_000_000,
            "{round}: {after} after {before}"
        );
    }
    drop((read, reader, keeper));
    server.assert_clean();
}

/// etcd visits the keys that were deleted when it reads a range, so a name is not to have a new one for each lock.
fn released_name_leaves_one_key(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let (keeper, rival) = (open_long(&server), open_long(&server));
    let held_by = |keeper: &LockKeeper| {
        let held = keeper.lock("a").unwrap();
        let key = server.keys("lockkeeper/default/l/a/").unwrap().remove(0);
        drop(held);
        key.key
    };
    let first = held_by(&keeper);
    assert_eq!(held_by(&keeper), first);
    let held = rival.lock("a").unwrap();
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| held_by(&keeper));
        until("it waits", || server.queue_length("a") == 1);
        drop(held);
        waiting.join().unwrap()
    });
    assert_eq!(waited, first);
    assert_ne!(held_by(&rival), first);
}

/// A waiter looks after its key once a second, also where the cluster's shortest lease is as short as that.
fn waiting_key_outlives_the_next_look(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let (keeper, rival) = (open_long(&server), open_long(&server));
    let least = Duration::from_secs(1);
    assert_eq!(keeper.capabilities().min_ttl(), least);
    let lives = |key: EtcdKey| {
        let lease = serde_json::json!({ "ID": key.lease.to_string() });
        let reply = server.call("/v3/lease/timetolive", &lease).unwrap();
        let ttl = reply["grantedTTL"].as_str().unwrap();
        Duration::from_secs(ttl.parse().unwrap())
    };
    let held = rival.lock("a").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| drop(keeper.lock("a").unwrap()));
        until("it waits", || server.queue_length("a") == 1);
        let keys = server.keys("lockkeeper/default/l/a/").unwrap();
        let shortest = keys.into_iter().map(lives).min().unwrap();
        assert!(shortest >= 2 * least, "{shortest:?}");
        drop(held);
        waiting.join().unwrap();
    });
}

/// The first permit is taken as a lock is, and leaves no more keys behind.
fn first_permit_is_one_write(kind: EtcdKind) {
    // No other program writes there.
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    let keeper = open_long(&server);
    let permits = keeper.semaphore("a", 2).unwrap();
    let revision = || {
        let any = serde_json::json!({ "key": "AA==" });
        let reply = server.call("/v3/kv/range", &any).unwrap();
        let revision = reply.pointer("/header/revision").unwrap();
        revision.as_str().unwrap().parse::<u64>().unwrap()
    };
    let keys = || server.keys("lockkeeper/default/p/a/").unwrap();
    let before = revision();
    let first = permits.acquire().unwrap();
    assert_eq!(revision(), before + 1);
    let key = keys().remove(0).key;
    let second = permits.acquire().unwrap();
    assert_eq!((first.slot(), second.slot()), (0, 1));
    assert_eq!(keys().len(), 2);
    first.release().unwrap();
    assert_ne!(keys().remove(0).key, key);
    second.release().unwrap();
    assert_eq!(keys(), []);
    let again = permits.acquire().unwrap();
    assert_eq!(keys().remove(0).key, key);
    again.release().unwrap();
}

/// A lock that is not renewed ends while another lock of its process keeps their lease in etcd alive.
fn forgotten_fixed_lease_ends(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let (keeper, rival) = (
        Keepers::open(&*server, "ttl=6s"),
        Keepers::open(&*server, "wait=20s"),
    );
    let witness = Witness::new(true);
    let renewed = keeper.lock("b").unwrap();
    let ttl = Duration::from_secs(6);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let forgotten = keeper.acquire("a", &fixed).unwrap().unwrap();
    witness.enter(&forgotten);
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert!(renewed.is_held());
    drop((next, forgotten, renewed, keeper, rival));
    server.assert_clean();
}

/// The database is full, or no longer.
pub(super) fn set_alarm(server: &EtcdServer, action: &str) {
    let body = serde_json::json!({ "action": action, "alarm": "NOSPACE" });
    server.call("/v3/maintenance/alarm", &body).unwrap();
}

fn full_database_is_told(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let keeper = open_long(&server);
    let held = keeper.lock("a").unwrap();
    set_alarm(&server, "ACTIVATE");
    let error = keeper.try_lock("b").unwrap_err();
    assert!(error.to_string().contains("full"), "{error:?}");
    // Operators are let in, and can free what is held.
    let operator = open_long(&server);
    let (admin, deadline) = (operator.admin().unwrap(), SystemClock.now() + WAIT_LIMIT);
    let found = admin.examine(deadline).unwrap();
    // It has one member.
    let expected = [
        ("alarms", Severity::Unusable),
        ("members", Severity::Warning),
    ];
    for (topic, severity) in expected {
        let found = found.iter().find(|it| it.topic == topic).unwrap();
        assert_eq!(found.severity, severity, "{found:?}");
    }
    let shown = admin.held(None, deadline).unwrap();
    let [shown] = &shown[..] else {
        panic!("it is held once: {shown:?}");
    };
    assert!(admin.force_release(shown, deadline).unwrap());
    assert_eq!(admin.held(None, deadline).unwrap(), []);
    assert!(operator.try_lock("a").is_err());
    set_alarm(&server, "DEACTIVATE");
    let next = operator.try_lock("a").unwrap().expect("it is free");
    assert!(next.token() > held.token());
    assert_eq!(held.renew().unwrap_err().kind(), ErrorKind::Lost);
}

/// A server that says nothing costs a batch one wait, and not one for each permit.
fn permits_of_a_batch_fail_together(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let options = etcd::EtcdOptions::tcp("127.0.0.1", server.addr().port());
    let options = options.response_timeout(Duration::from_millis(300));
    let mut provider = None;
    until("the server replies within so short a time", || {
        provider = etcd::EtcdProvider::open(&options, "default").ok();
        provider.is_some()
    });
    let provider = provider.unwrap();
    let names = ["a", "b", "c", "d"].map(|name| LockName::new(name).unwrap());
    let requests = names.each_ref().map(|name| {
        let ttl = Duration::from_secs(10);
        let request = AcquireRequest::attempt(name, ttl, &SystemClock);
        request.with_mode(Mode::Permit { limit: 2 })
    });
    let mut batch = requests.each_ref().map(|request| {
        Operation::Acquire(AttemptRequest {
            request,
            deadline: SystemClock.now() + WAIT_LIMIT,
            answer: None,
        })
    });
    let commands = || provider.usage().unwrap().commands;
    let before = commands();
    server.stop().unwrap();
    provider.batch(&mut batch);
    server.cont().unwrap();
    assert_eq!(commands() - before, 1);
    for operation in &batch {
        let Operation::Acquire(it) = operation else {
            continue;
        };
        assert!(matches!(it.answer, Some(Err(_))));
    }
}

/// A cancel closes the connection of a request that is the caller's alone. The first attempt would be granted the lease.
fn cancelled_attempt_fails_no_other(kind: EtcdKind) {
    let server = share::<EtcdServer>(kind);
    let options = etcd::EtcdOptions::tcp("127.0.0.1", server.addr().port());
    let options = options.response_timeout(WAIT_LIMIT);
    let provider = etcd::EtcdProvider::open(&options, "default").unwrap();
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let names = ["a", "b"].map(|name| LockName::new(name).unwrap());
    let requests = names.each_ref().map(|name| {
        AcquireRequest::attempt(name, Duration::from_secs(10), &SystemClock)
            .cancelled_by(Some(&cancelled).filter(|_| name.as_str() == "a"))
    });
    let mut batch = requests.each_ref().map(|request| {
        Operation::Acquire(AttemptRequest {
            request,
            deadline: SystemClock.now() + WAIT_LIMIT,
            answer: None,
        })
    });
    provider.batch(&mut batch);
    let [_, Operation::Acquire(other)] = batch else {
        panic!("they are attempts");
    };
    assert!(
        matches!(other.answer, Some(Ok(Some(_)))),
        "{:?}",
        other.answer
    );
}
