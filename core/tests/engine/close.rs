//! The end of a keeper and its guards.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, CancelToken, Error, ErrorKind, FencingToken, LockGuard, ObservedLock, Observer,
    ReentrantKeeper, Released, Wait,
};

use crate::answers::Grants;
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn guards_outlive_their_keeper() {
    let (store, keeper) = scripted();
    let guard = keeper.lock("a").unwrap();
    drop(keeper);
    store.next_renewal("a");
    let has_moved = || guard.remaining() == 11 * SECOND;
    eventually("the deadline should move", has_moved);
    assert_eq!(guard.release().unwrap(), Released::Done);
}

/// The longest that the last drop waits for a thread that uses the store.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);

/// Reports a renewal to the test, and keeps the thread for a while.
struct SlowObserver(mpsc::Sender<()>);

impl Observer for SlowObserver {
    fn renewed(&self, _: &ObservedLock<'_>, _: FencingToken) {
        self.0.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
}

/// Drops the last keeper or guard, and checks that no thread has the store then. The drop gives up after
/// [`CLOSE_LIMIT`], so a thread that a busy machine has held up for longer may still have it.
#[track_caller]
fn assert_closed_by_drop_of<T>(last: T, store: &Arc<ScriptedStore>) {
    let began = Instant::now();
    drop(last);
    let gave_up = began.elapsed() >= CLOSE_LIMIT;
    let is_closed = || Arc::strong_count(store) == 1;
    assert!(gave_up || is_closed(), "a thread still has it");
    eventually("no thread has the store", is_closed);
}

#[test]
fn store_is_closed_when_the_last_keeper_is_dropped() {
    let store = ScriptedStore::new();
    let (sender, renewed) = mpsc::channel();
    let observer = Arc::new(SlowObserver(sender));
    let keeper = store.builder().observer(observer).build().unwrap();
    let other = keeper.clone();
    let guard = keeper.lock("a").unwrap();
    store.clock.advance(4 * SECOND);
    renewed.recv_timeout(LIMIT).unwrap();
    drop(guard);
    drop(other);
    assert_closed_by_drop_of(keeper, &store);
}

#[test]
fn no_thread_has_the_store_when_the_last_guard_is_dropped() {
    let store = ScriptedStore::new();
    // The threads are just beginning, or just ending.
    for _ in 0..1_000 {
        let keeper = store.keeper();
        let guard = keeper.lock("a").unwrap();
        drop(guard);
        assert_closed_by_drop_of(keeper, &store);

        let keeper = store.keeper();
        let guard = keeper.lock("a").unwrap();
        drop(keeper);
        assert_closed_by_drop_of(guard, &store);
    }
}

fn assert_closed(answer: Result<Option<LockGuard>, Error>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn close_ends_all_waits_and_keeps_guards() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder().wait(Wait::Forever));
    let guard = keeper.lock("a").unwrap();
    let tokens = [None, Some(CancelToken::new())];
    let waiters = tokens.clone().map(|token| {
        let keeper = keeper.clone();
        let options = AcquireOptions::new();
        let options = token.iter().fold(options, AcquireOptions::cancel);
        let waiter = thread::spawn(move || keeper.acquire("a", &options));
        events.expect(Event::Contended);
        waiter
    });
    for _ in 0..2 {
        keeper.clone().close();
        eventually("all waits end", || {
            waiters.iter().all(thread::JoinHandle::is_finished)
        });
    }
    for waiter in waiters {
        assert_closed(waiter.join().unwrap());
    }
    assert!(!tokens[1].as_ref().unwrap().is_cancelled());

    assert_closed(keeper.try_lock("b"));
    assert_closed(keeper.lock("b").map(Some));
    assert_eq!(store.count("b", "acquire"), 0);
    store.next_renewal("a");
    wait_until_renewed(&guard);
    guard.renew().unwrap();
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(store.count("a", "acquire"), 1);
}

#[test]
fn close_does_not_wait_for_a_silent_store_forever() {
    let (store, keeper) = scripted();
    store.grants(Grants::Silent);
    let acquiring = keeper.clone();
    let head = thread::spawn(move || acquiring.acquire("a", &AcquireOptions::new()));
    store.wait_for("a", "acquire", 1);
    keeper.close();
    assert!(!head.is_finished());
    store.grants(Grants::Work);
    assert_closed(head.join().unwrap());
    assert!(store.keeper().try_lock("a").unwrap().is_some());
}

#[test]
fn thread_that_holds_a_reentrant_lock_gets_it_again_after_the_close() {
    let store = ScriptedStore::new();
    let keeper = ReentrantKeeper::new(store.keeper());
    let outer = keeper.lock("a").unwrap();
    keeper.close();
    keeper.lock("a").unwrap().finish().unwrap();
    outer.finish().unwrap();
    assert_fails(keeper.lock("a"), ErrorKind::Cancelled);
}
