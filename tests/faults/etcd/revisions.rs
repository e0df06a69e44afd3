//! Revisions that begin again, far below those that a program has seen.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper::backend::epoch_at;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{LockKeeper, WaitOutcome};
use lockkeeper_testkit::{EtcdKind, EtcdOptions, EtcdServer, Proxy, cases, until};

use super::Case;
use crate::common::{Keepers, WAIT_LIMIT};

pub(super) const CASES: &[Case] = cases![
    unlock_in_a_new_cluster_is_noticed,
    unlock_after_a_compaction_is_noticed,
    waiter_in_a_new_cluster_rests,
    tokens_grow_over_a_restored_snapshot,
    tokens_grow_over_a_snapshot_ahead_of_the_clock,
];

/// With this ttl a renewal is due after all limits of the suite.
const KEYS: &str = "ttl=10m";

/// Starts a server on which there were more revisions than a case has of a new one.
fn start(kind: EtcdKind) -> EtcdServer {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    (0..300).for_each(|_| server.put("other", "").unwrap());
    server
}

fn unlock_in_a_new_cluster_is_noticed(kind: EtcdKind) {
    let server = start(kind);
    let keeper = Keepers::open(&server, KEYS);
    notices_unlock(&server, &keeper);
    let held = keeper.lock("a").unwrap();
    server.restart_empty().unwrap();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    notices_unlock(&server, &keeper);
}

/// A watch that heard of nothing for long begins at a revision that is compacted when it has to connect again.
fn unlock_after_a_compaction_is_noticed(kind: EtcdKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = server.open_via(&proxy, KEYS);
    notices_unlock(&server, &keeper);
    (0..300).for_each(|_| server.put("other", "").unwrap());
    let compacted = serde_json::json!({ "revision": "600" });
    server.call("/v3/kv/compaction", &compacted).unwrap();
    proxy.cut();
    notices_unlock(&server, &keeper);
}

fn notices_unlock(server: &EtcdServer, keeper: &LockKeeper) {
    let operator = Keepers::open(server, KEYS);
    let admin = operator.admin().unwrap();
    let deadline = SystemClock.now() + WAIT_LIMIT;
    // The first time, the keeper may verify its leases since it has begun to listen.
    for _ in 0..2 {
        let taken = keeper.lock("a").unwrap();
        let shown = admin.held(Some(taken.name()), deadline).unwrap();
        let shown = shown.first().unwrap();
        assert!(admin.force_release(shown, deadline).unwrap());
        assert_eq!(taken.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    }
}

fn waiter_in_a_new_cluster_rests(kind: EtcdKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = server.open_via(&proxy, KEYS);
    let rival = Keepers::open(&server, KEYS);
    let former = rival.lock("a").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("a", WAIT_LIMIT));
        until("it waits", || server.queue_length("a") == 1);
        proxy.refuse();
        server.restart_empty().unwrap();
        drop(former);
        let held = rival.lock("a").unwrap();
        proxy.accept().unwrap();
        until("it waits again", || server.queue_length("a") == 1);
        let commands = |keeper: &LockKeeper| keeper.usage().unwrap().commands;
        until("it rests while the holder does not", || {
            let (before, began) = (commands(&keeper), Instant::now());
            (0..100).for_each(|_| held.renew().unwrap());
            // It looks once a second, and on a busy machine the renewals take long.
            commands(&keeper) - before < 10 + 3 * began.elapsed().as_secs()
        });
        held.release().unwrap();
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
}

/// The number that epochs add to the revision is as it was, and revisions begin again.
fn tokens_grow_over_a_restored_snapshot(kind: EtcdKind) {
    tokens_grow_on(&start(kind));
}

/// Another program, whose clock is ahead, has raised the number that epochs add to the revision.
fn tokens_grow_over_a_snapshot_ahead_of_the_clock(kind: EtcdKind) {
    let server = start(kind);
    let ahead = epoch_at(SystemTime::now() + Duration::from_secs(3_600));
    server
        .put("lockkeeper/default/base", &format!("{ahead:020}"))
        .unwrap();
    tokens_grow_on(&server);
}

fn tokens_grow_on(server: &EtcdServer) {
    let keeper = Keepers::open(server, "ttl=10m&wait=20s");
    let token = |round: usize| match round {
        0 => keeper.lock("a").unwrap().token(),
        1 => keeper.lock_shared("a").unwrap().token(),
        2 => keeper.try_lock("a").unwrap().expect("it is free").token(),
        _ => {
            let all = keeper.try_lock_all(["a", "c"]).unwrap();
            all.expect("they are free").token("a").unwrap()
        }
    };
    for round in 0..4 {
        let last = token(0);
        let kept = server.keys("lockkeeper/default/").unwrap();
        let kept = kept.iter().find(|it| it.key.ends_with("/base")).unwrap();
        server.restart_empty().unwrap();
        server.put(&kept.key, &kept.value).unwrap();
        let next = token(round);
        assert!(next > last, "{round}: {next} after {last}");
        (0..300).for_each(|_| server.put("other", "").unwrap());
    }
}
