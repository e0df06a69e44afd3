//! The end of a keeper and its guards.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{FencingToken, LockName, Observer, Released};

use crate::scripted_store::{LIMIT, SECOND, ScriptedStore, eventually};

#[test]
fn guards_outlive_their_keeper() {
    let store = ScriptedStore::new();
    let keeper = store.keeper();
    let guard = keeper.lock("a").unwrap();
    drop(keeper);
    store.next_renewal("a");
    let has_moved = || guard.remaining() == 11 * SECOND;
    eventually("the deadline should move", has_moved);
    assert_eq!(guard.release().unwrap(), Released::Done);
}

/// Reports a renewal to the test, and keeps the thread for a while.
struct SlowObserver(mpsc::Sender<()>);

impl Observer for SlowObserver {
    fn renewed(&self, _: &LockName, _: FencingToken) {
        self.0.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
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
    drop(keeper);
    assert_eq!(Arc::strong_count(&store), 1, "a thread still has it");
}

#[test]
fn no_thread_has_the_store_when_the_last_guard_is_dropped() {
    let store = ScriptedStore::new();
    // The threads are just beginning, or just ending.
    for _ in 0..1_000 {
        let keeper = store.keeper();
        let guard = keeper.lock("a").unwrap();
        drop(guard);
        drop(keeper);
        assert_eq!(Arc::strong_count(&store), 1, "a thread still has it");

        let keeper = store.keeper();
        let guard = keeper.lock("a").unwrap();
        drop(keeper);
        drop(guard);
        assert_eq!(Arc::strong_count(&store), 1, "a thread still has it");
    }
}
