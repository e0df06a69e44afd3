//! Standing in line: errors, single attempts, hand-over and its bounds, cancel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, ErrorKind, FencingToken, LeasePolicy, LockKeeper, LockName,
    Observer, Wait, WaitOutcome,
};

use crate::script::{Grants, PATIENCE, Renewals, Script, Silent, eventually};

/// Says when a thread has begun to wait.
struct InLine(Mutex<Sender<()>>);

impl Observer for InLine {
    fn contended(&self, _: &LockName) {
        let _ = self.0.lock().unwrap().send(());
    }
}

fn observed(builder: lockkeeper_core::LockKeeperBuilder) -> (LockKeeper, Receiver<()>) {
    let (send, in_line) = mpsc::channel();
    let keeper = builder
        .wait(Wait::Forever)
        .observer(Arc::new(InLine(Mutex::new(send))))
        .build()
        .unwrap();
    (keeper, in_line)
}

/// Has `count` threads take the lock in a known order behind a holder; returns their tokens.
fn in_turn(keeper: &LockKeeper, in_line: &Receiver<()>, count: usize) -> Vec<FencingToken> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let holder = keeper.lock("a").unwrap();
    let threads: Vec<_> = (0..count)
        .map(|who| {
            let (keeper, order) = (keeper.clone(), Arc::clone(&order));
            let thread = thread::spawn(move || {
                let guard = keeper.lock("a").unwrap();
                order.lock().unwrap().push((who, guard.token()));
            });
            in_line.recv_timeout(PATIENCE).unwrap();
            // It has said so just before it blocks: whoever comes now stands behind it.
            thread
        })
        .collect();
    drop(holder);
    for thread in threads {
        thread.join().unwrap();
    }
    let order = order.lock().unwrap();
    assert_eq!(
        order.iter().map(|(who, _)| *who).collect::<Vec<_>>(),
        (0..count).collect::<Vec<_>>(),
        "first come, first served"
    );
    order.iter().map(|(_, token)| *token).collect()
}

#[test]
fn a_line_costs_the_store_one_acquisition_and_tokens_grow_by_one() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder());
    let tokens = in_turn(&keeper, &in_line, 10);
    assert_eq!(script.count("a", "acquire"), 1);
    assert_eq!(script.count("a", "release"), 1);
    let first = tokens[0].get();
    assert!(
        tokens
            .iter()
            .enumerate()
            .all(|(i, token)| token.get() == first + i as u64)
    );
}

#[test]
fn hand_over_is_bounded_by_count() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder().handover_max(3));
    let tokens = in_turn(&keeper, &in_line, 8);
    // The holder and three of the line, then four, then the last.
    assert_eq!(script.count("a", "acquire"), 3);
    assert!(tokens.is_sorted_by(|a, b| a < b));
}

#[test]
fn hand_over_is_bounded_by_time() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder().handover_time(Duration::ZERO));
    in_turn(&keeper, &in_line, 4);
    assert_eq!(script.count("a", "acquire"), 5);
}

#[test]
fn hand_over_can_be_switched_off() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder().handover_max(0));
    in_turn(&keeper, &in_line, 4);
    assert_eq!(script.count("a", "acquire"), 5);
}

#[test]
fn a_lease_is_not_handed_to_a_waiter_that_wants_another() {
    let ttl = Duration::from_secs(5);
    for policy in [LeasePolicy::Fixed { ttl }, LeasePolicy::Renewed { ttl }] {
        let script = Script::new();
        let (keeper, in_line) = observed(script.builder());
        let holder = keeper.lock("a").unwrap();
        let waiter = {
            let keeper = keeper.clone();
            thread::spawn(move || {
                let options = AcquireOptions::new().lease(policy);
                let guard = keeper.acquire("a", &options).unwrap().unwrap();
                assert_eq!(guard.remaining(), Duration::from_millis(4500));
            })
        };
        in_line.recv_timeout(PATIENCE).unwrap();
        drop(holder);
        waiter.join().unwrap();
        assert_eq!(script.count("a", "acquire"), 2);
    }
}

#[test]
fn a_renewal_under_way_does_not_stop_a_hand_over_and_counts_for_the_next() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder().handover_time(Duration::from_secs(60)));
    let holder = keeper.lock("a").unwrap();
    script.renewals("a", Renewals::Hang);
    script.clock.advance(Duration::from_secs(4));
    script.until("a", "renew", 1);
    let waiter = {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.lock("a").unwrap())
    };
    in_line.recv_timeout(PATIENCE).unwrap();
    drop(holder);
    let next = waiter.join().unwrap();
    assert_eq!(next.remaining(), Duration::from_secs(7));
    script.renewals("a", Renewals::Work);
    // And it goes on being renewed.
    for _ in 0..5 {
        let before = script.count("a", "renew");
        eventually("the renewal counts", || {
            next.remaining() == Duration::from_secs(11)
        });
        script.clock.advance(Duration::from_secs(4));
        script.until("a", "renew", before + 1);
    }
    assert_eq!(script.count("a", "acquire"), 1);
}

#[test]
fn a_lease_that_is_handed_to_a_cancelled_waiter_goes_on_to_the_next() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder());
    let holder = Mutex::new(Some(keeper.lock("a").unwrap()));
    let cancel = CancelToken::new();
    // Registered before the waiter, so that it comes before the waiter wakes: by then the token
    // is cancelled, and the lease is the waiter's.
    let _release = cancel.on_cancel(move || drop(holder.lock().unwrap().take()));
    let waiter = {
        let (keeper, cancel) = (keeper.clone(), cancel.clone());
        let options = AcquireOptions::new().cancel(&cancel);
        thread::spawn(move || keeper.acquire("a", &options).map(drop))
    };
    in_line.recv_timeout(PATIENCE).unwrap();
    cancel.cancel();
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(keeper.try_lock("a").unwrap().is_some(), "it stayed behind");
}

#[test]
fn out_of_reach_is_told_to_all_who_would_not_wait() {
    let script = Script::new();
    let keeper = script.keeper();
    script.set(|state| state.grants = Grants::Unreachable);
    let barrier = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (keeper, barrier) = (keeper.clone(), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                keeper.try_lock("a").unwrap_err().kind()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), ErrorKind::Unavailable);
    }
    let error = keeper.lock("a").unwrap_err();
    assert_eq!(error.backend(), Some("script"));
    assert_eq!(error.name(), Some("a"));
    script.set(|state| state.grants = Grants::Work);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn a_panic_in_the_store_passes_the_turn_on() {
    let script = Script::new();
    let keeper = script.keeper();
    script.set(|state| state.grants = Grants::Panic);
    let panicked = catch_unwind(AssertUnwindSafe(|| keeper.lock("a").map(drop)));
    assert!(panicked.is_err());
    script.set(|state| state.grants = Grants::Work);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn cancel_wakes_a_waiter_and_the_next_one_is_not_held_up() {
    let script = Script::new();
    let (keeper, in_line) = observed(script.builder());
    let holder = keeper.lock("a").unwrap();
    let cancel = CancelToken::new();
    let spawn = |options: AcquireOptions| {
        let keeper = keeper.clone();
        let thread = thread::spawn(move || keeper.acquire("a", &options));
        in_line.recv_timeout(PATIENCE).unwrap();
        thread
    };
    let first = spawn(AcquireOptions::new().cancel(&cancel));
    let second = spawn(AcquireOptions::new());
    cancel.cancel();
    let error = first.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    drop(holder);
    assert!(second.join().unwrap().unwrap().is_some());
    let late = keeper.acquire("b", &AcquireOptions::new().cancel(&cancel));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(script.count("b", "acquire"), 0);
}

#[test]
fn a_cancelled_head_whom_nobody_answered_makes_no_name_busy() {
    let script = Script::new();
    let keeper = script.keeper();
    script.set(|state| state.grants = Grants::Silent);
    let cancel = CancelToken::new();
    let head = {
        let (keeper, options) = (keeper.clone(), AcquireOptions::new().cancel(&cancel));
        thread::spawn(move || keeper.acquire("a", &options).map(drop))
    };
    script.until("a", "acquire", 1);
    let behind = thread::spawn(move || keeper.try_lock("a").map(|guard| guard.is_some()));
    // Time to stand in line; a test that is too quick sees less, and fails no more for it.
    for _ in 0..10_000 {
        thread::yield_now();
    }
    cancel.cancel();
    script.set(|_| ());
    let error = head.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    script.set(|state| state.grants = Grants::Work);
    assert!(
        behind.join().unwrap().unwrap(),
        "nobody was seen to hold it"
    );
}

#[test]
fn what_is_out_of_bounds_never_reaches_the_store() {
    let script = Script::new();
    let keeper = script.keeper();
    let fixed = |ttl| AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let kind = |options: &AcquireOptions| keeper.acquire("a", options).unwrap_err().kind();
    assert_eq!(kind(&fixed(Duration::ZERO)), ErrorKind::InvalidTtl);
    assert_eq!(kind(&fixed(Duration::MAX)), ErrorKind::InvalidTtl);
    assert_eq!(
        kind(&fixed(Duration::from_millis(99))),
        ErrorKind::TtlTooShort
    );
    assert_eq!(
        kind(&AcquireOptions::new().wait(Duration::MAX)),
        ErrorKind::InvalidWait
    );
    assert_eq!(keeper.lock("").unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(
        keeper.lock("x".repeat(513)).unwrap_err().kind(),
        ErrorKind::InvalidName
    );
    let error = script.builder().handover_max(128).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    assert_eq!(script.count("a", "acquire"), 0);
}

#[test]
fn a_wait_that_the_clock_jumped_over_is_over() {
    let hour = Duration::from_secs(3600);
    let script = Script::new();
    let clock = Arc::new(Silent(script.clock.clone()));
    let (keeper, in_line) = observed(script.builder().clock(clock));
    let ttl = 1_000_000 * hour / 2;
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let guard = keeper.acquire("a", &fixed).unwrap().unwrap();
    let waiter = {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.try_lock_for("a", hour).map(|guard| guard.is_some()))
    };
    in_line.recv_timeout(PATIENCE).unwrap();
    script.clock.advance(hour);
    eventually("the wait in line ends", || waiter.is_finished());
    assert!(!waiter.join().unwrap().unwrap());

    let signal = guard.lost_signal();
    let watcher = thread::spawn(move || signal.wait(hour));
    eventually("the wait for a loss ends", || {
        script.clock.advance(Duration::from_secs(60));
        watcher.is_finished()
    });
    assert_eq!(watcher.join().unwrap(), WaitOutcome::TimedOut);
}

#[test]
fn a_single_attempt_behind_a_store_that_does_not_answer_has_an_end() {
    let script = Script::new();
    let keeper = script.keeper();
    script.set(|state| state.grants = Grants::Silent);
    let head = {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.acquire("a", &AcquireOptions::new().wait_forever()))
    };
    script.until("a", "acquire", 1);
    let behind = {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.try_lock("a").map(drop))
    };
    eventually("a single attempt ends", || {
        script.clock.advance(Duration::from_secs(1));
        behind.is_finished()
    });
    let error = behind.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    script.set(|state| state.grants = Grants::Work);
    assert!(head.join().unwrap().unwrap().is_some());
}
