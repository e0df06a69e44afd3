//! Reentrant locks.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind, Mode, ReentrantKeeper};

use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn thread_gets_its_lock_again_and_the_last_guard_releases_it() {
    let store = ScriptedStore::new();
    let keeper = ReentrantKeeper::new(store.keeper());
    let outer = keeper.lock("a").unwrap();
    let inner = keeper.lock("a").unwrap();
    let third = keeper.try_lock_for("a", Duration::ZERO).unwrap().unwrap();
    assert_eq!((outer.depth(), inner.token()), (3, outer.token()));
    assert_eq!(store.count("a", "acquire"), 1);

    let is_busy = || keeper.try_lock_for("a", Duration::ZERO).unwrap().is_none();
    let is_busy_elsewhere = || thread::scope(|scope| scope.spawn(is_busy).join().unwrap());
    assert!(is_busy_elsewhere(), "another thread is another holder");
    drop(outer);
    drop(third);
    assert!(is_busy_elsewhere());
    assert_eq!(store.count("a", "release"), 0);
    inner.finish().unwrap();
    assert_eq!(store.count("a", "release"), 1);
    assert!(!is_busy_elsewhere());
}

#[test]
fn lost_lock_is_not_acquired_again_by_its_thread() {
    let store = ScriptedStore::new();
    let keeper = ReentrantKeeper::new(store.keeper());
    let outer = keeper.lock("a").unwrap();
    store.clock.advance(60 * SECOND);
    assert_eq!(keeper.lock("a").unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.finish().unwrap_err().kind(), ErrorKind::Lost);
    keeper.lock("a").unwrap().finish().unwrap();
}

#[test]
fn thread_that_writes_may_read_and_one_that_reads_is_told_not_to_write() {
    let store = ScriptedStore::new();
    let keeper = ReentrantKeeper::new(store.keeper());
    let writing = keeper.lock("a").unwrap();
    let reading = keeper.lock_shared("a").unwrap();
    assert_eq!(reading.mode(), Mode::Exclusive);
    drop((writing, reading));

    let reading = keeper.lock_shared("a").unwrap();
    assert_eq!(keeper.lock_shared("a").unwrap().mode(), Mode::Shared);
    let refused = keeper.lock("a").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Deadlock);
    assert!(reading.is_held());
    drop(reading);
    drop(keeper.lock("a").unwrap());

    let permit = AcquireOptions::new().mode(Mode::Permit { limit: 2 });
    let refused = keeper.acquire("a", &permit).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
