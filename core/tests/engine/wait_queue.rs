//! The wait queue: errors, single attempts, hand-over and its bounds, cancel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, ErrorKind, FencingToken, LeasePolicy, LockKeeper,
    LockKeeperBuilder, Wait, WaitOutcome,
};

use crate::answers::{Grants, Renewals};
use crate::events::{Event, Events, JumpingClock, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

fn waiting_forever(builder: LockKeeperBuilder) -> (LockKeeper, Events) {
    observed(builder.wait(Wait::Forever))
}

/// Returns once the thread is in the wait queue.
fn spawn_waiting(keeper: &LockKeeper, events: &Events, options: AcquireOptions) -> Acquiring {
    let thread = spawn_acquire(keeper, "a", options);
    // The event comes after the thread has entered the queue.
    events.expect(Event::Contended);
    thread
}

/// Starts threads that wait, in a known order, for a held lock. Releases it, and returns their tokens.
fn acquire_in_order((keeper, events): &(LockKeeper, Events), count: usize) -> Vec<FencingToken> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let holder = keeper.lock("a").unwrap();
    let spawn = |number| {
        let (keeper, order) = (keeper.clone(), Arc::clone(&order));
        let thread = thread::spawn(move || {
            let guard = keeper.lock("a").unwrap();
            order.lock().unwrap().push((number, guard.token()));
        });
        events.expect(Event::Contended);
        thread
    };
    let threads: Vec<_> = (0..count).map(spawn).collect();
    drop(holder);
    for thread in threads {
        thread.join().unwrap();
    }
    let (numbers, tokens): (Vec<_>, _) = order.lock().unwrap().iter().copied().unzip();
    assert!(numbers.into_iter().eq(0..count), "first come, first served");
    tokens
}

#[test]
fn waiting_threads_cost_the_store_one_acquisition_and_tokens_grow_by_one() {
    let store = ScriptedStore::new();
    let tokens = acquire_in_order(&waiting_forever(store.builder()), 10);
    assert_eq!(store.count("a", "acquire"), 1);
    assert_eq!(store.count("a", "release"), 1);
    let first = tokens[0].get();
    assert!(tokens.iter().map(|token| token.get()).eq(first..first + 10));
}

#[test]
fn handover_is_bounded_by_count_and_by_time() {
    type Bound = fn(LockKeeperBuilder) -> LockKeeperBuilder;
    const FIXED: LeasePolicy = LeasePolicy::Fixed { ttl: LIMIT };
    let bounds: [(Bound, usize, usize); 4] = [
        // The holder and three waiters, then four, then the last.
        (|builder| builder.handover_max(3), 8, 3),
        (|builder| builder.handover_max(0), 4, 5),
        (|builder| builder.handover_time(Duration::ZERO), 4, 5),
        // A fixed lease ends with its guard.
        (|builder| builder.lease(FIXED), 4, 5),
    ];
    for (bound, waiters, acquisitions) in bounds {
        let store = ScriptedStore::new();
        let tokens = acquire_in_order(&waiting_forever(bound(store.builder())), waiters);
        assert_eq!(store.count("a", "acquire"), acquisitions);
        assert!(tokens.is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn lease_is_not_handed_to_a_waiter_that_wants_another_policy() {
    let ttl = 5 * SECOND;
    for policy in [LeasePolicy::Fixed { ttl }, LeasePolicy::Renewed { ttl }] {
        let store = ScriptedStore::new();
        let (keeper, events) = waiting_forever(store.builder());
        let holder = keeper.lock("a").unwrap();
        let waiter = spawn_waiting(&keeper, &events, AcquireOptions::new().lease(policy));
        drop(holder);
        let guard = waiter.join().unwrap().unwrap().unwrap();
        assert_eq!(guard.remaining(), Duration::from_millis(4500));
        assert_eq!(store.count("a", "acquire"), 2);
    }
}

#[test]
fn renewal_under_way_does_not_stop_a_handover_and_counts_for_the_next_guard() {
    let store = ScriptedStore::new();
    let (keeper, events) = waiting_forever(store.builder().handover_time(60 * SECOND));
    let holder = keeper.lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    let waiter = spawn_waiting(&keeper, &events, AcquireOptions::new());
    drop(holder);
    let next = waiter.join().unwrap().unwrap().unwrap();
    assert_eq!(next.remaining(), 7 * SECOND);
    store.renewals("a", Renewals::Work);
    for _ in 0..5 {
        wait_until_renewed(&next);
        store.next_renewal("a");
    }
    assert_eq!(store.count("a", "acquire"), 1);
}

#[test]
fn lease_with_little_time_left_goes_back_to_the_store() {
    let store = ScriptedStore::new();
    let (keeper, events) = waiting_forever(store.builder().handover_time(60 * SECOND));
    // A third of the ttl of 12 s is left at 7 s: the guard is lost at 11 s.
    for (at, requests) in [(6 * SECOND, 1), (7 * SECOND, 2)] {
        store.renewals("a", Renewals::Work);
        let holder = keeper.lock("a").unwrap();
        let before = store.count("a", "acquire");
        let waiter = spawn_waiting(&keeper, &events, AcquireOptions::new());
        store.renewals("a", Renewals::Hang);
        store.next_renewal("a");
        store.clock.advance(at - 4 * SECOND);
        drop(holder);
        store.renewals("a", Renewals::Work);
        let next = waiter.join().unwrap().unwrap().unwrap();
        assert_eq!(store.count("a", "acquire"), before + requests - 1);
        next.release().unwrap();
    }
}

#[test]
fn lease_that_is_handed_to_a_cancelled_waiter_goes_on_to_the_next() {
    let store = ScriptedStore::new();
    let (keeper, events) = waiting_forever(store.builder());
    let holder = Mutex::new(Some(keeper.lock("a").unwrap()));
    let cancel = CancelToken::new();
    // Registered before the waiter, so it runs before the waiter wakes: by then the token is
    // cancelled, and the lease is the waiter's.
    let _release = cancel.on_cancel(move || drop(holder.lock().unwrap().take()));
    let options = AcquireOptions::new().cancel(&cancel);
    let waiter = spawn_waiting(&keeper, &events, options);
    cancel.cancel();
    assert_fails(waiter.join().unwrap(), ErrorKind::Cancelled);
    assert!(keeper.try_lock("a").unwrap().is_some(), "it stayed behind");
}

#[test]
fn unreachable_store_fails_all_single_attempts() {
    let (store, keeper) = scripted();
    store.grants(Grants::Unreachable(Duration::ZERO));
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                assert_fails(keeper.try_lock("a"), ErrorKind::Unavailable);
            });
        }
    });
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(
        (error.name(), error.backend()),
        (Some("a"), Some("scripted"))
    );
    store.grants(Grants::Work);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn panic_in_the_store_passes_the_head_permit_on() {
    let (store, keeper) = scripted();
    store.grants(Grants::Panic);
    let result = catch_unwind(AssertUnwindSafe(|| keeper.lock("a").map(drop)));
    assert!(result.is_err());
    store.grants(Grants::Work);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn cancel_wakes_a_waiter_and_does_not_delay_the_next() {
    let store = ScriptedStore::new();
    let (keeper, events) = waiting_forever(store.builder());
    let holder = keeper.lock("a").unwrap();
    let cancel = CancelToken::new();
    let cancellable = AcquireOptions::new().cancel(&cancel);
    let first = spawn_waiting(&keeper, &events, cancellable.clone());
    let second = spawn_waiting(&keeper, &events, AcquireOptions::new());
    cancel.cancel();
    assert_fails(first.join().unwrap(), ErrorKind::Cancelled);
    drop(holder);
    assert!(second.join().unwrap().unwrap().is_some());
    let late = keeper.acquire("b", &cancellable);
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(store.count("b", "acquire"), 0);
}

#[test]
fn cancelled_head_without_an_answer_makes_no_name_busy() {
    let (store, keeper) = scripted();
    store.grants(Grants::Silent);
    let cancel = CancelToken::new();
    let head = spawn_acquire(&keeper, "a", AcquireOptions::new().cancel(&cancel));
    store.wait_for("a", "acquire", 1);
    let behind = thread::spawn(move || keeper.try_lock("a"));
    // Time to enter the queue; a test that is too quick sees less, and fails no more for it.
    for _ in 0..10_000 {
        thread::yield_now();
    }
    cancel.cancel();
    store.set(|_| ());
    assert_fails(head.join().unwrap(), ErrorKind::Cancelled);
    store.grants(Grants::Work);
    let granted = behind.join().unwrap().unwrap().is_some();
    assert!(granted, "no holder was seen");
}

#[test]
fn settings_out_of_bounds_never_reach_the_store() {
    let (store, keeper) = scripted();
    let acquire = |name: &str, options| keeper.acquire(name, &options).unwrap_err().kind();
    for (options, kind) in [
        (fixed(Duration::ZERO), ErrorKind::InvalidTtl),
        (fixed(Duration::MAX), ErrorKind::InvalidTtl),
        (fixed(Duration::from_millis(99)), ErrorKind::TtlTooShort),
        (
            AcquireOptions::new().wait(Duration::MAX),
            ErrorKind::InvalidWait,
        ),
    ] {
        assert_eq!(acquire("a", options), kind);
    }
    for name in ["", &"x".repeat(513), &"자".repeat(171)] {
        assert_eq!(acquire(name, AcquireOptions::new()), ErrorKind::InvalidName);
    }
    let builder = || store.builder();
    let fixed = |ttl| builder().lease(LeasePolicy::Fixed { ttl });
    let wait = Wait::AtMost(Duration::MAX);
    for (builder, kind) in [
        (fixed(Duration::ZERO), ErrorKind::InvalidTtl),
        (fixed(Duration::MAX), ErrorKind::InvalidTtl),
        (fixed(Duration::from_millis(99)), ErrorKind::TtlTooShort),
        (builder().wait(wait), ErrorKind::InvalidWait),
        (builder().handover_max(128), ErrorKind::InvalidValue),
    ] {
        assert_fails(builder.build(), kind);
    }
    assert_eq!(store.count("a", "acquire"), 0);
}

#[test]
fn wait_ends_when_the_clock_jumps_over_its_deadline() {
    let hour = 3600 * SECOND;
    let store = ScriptedStore::new();
    let clock = Arc::new(JumpingClock(store.clock.clone()));
    let (keeper, events) = waiting_forever(store.builder().clock(clock));
    let guard = keeper
        .acquire("a", &fixed(500_000 * hour))
        .unwrap()
        .unwrap();
    let waiter = spawn_waiting(&keeper, &events, AcquireOptions::new().wait(hour));
    store.clock.advance(hour);
    eventually("the wait in the queue ends", || waiter.is_finished());
    assert!(waiter.join().unwrap().unwrap().is_none());

    let signal = guard.lost_signal();
    let waiter = thread::spawn(move || signal.wait(hour));
    eventually("the wait for a loss ends", || {
        store.clock.advance(60 * SECOND);
        waiter.is_finished()
    });
    assert_eq!(waiter.join().unwrap(), WaitOutcome::TimedOut);
}

#[test]
fn single_attempt_behind_a_silent_store_ends() {
    let (store, keeper) = scripted();
    store.grants(Grants::Silent);
    let head = spawn_acquire(&keeper, "a", forever());
    store.wait_for("a", "acquire", 1);
    let behind = thread::spawn(move || keeper.try_lock("a"));
    eventually("the single attempt ends", || {
        store.clock.advance(SECOND);
        behind.is_finished()
    });
    assert_fails(behind.join().unwrap(), ErrorKind::Unavailable);
    store.grants(Grants::Work);
    assert!(head.join().unwrap().unwrap().is_some());
}
