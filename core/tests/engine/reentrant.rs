//! Reentrant locks.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{ErrorKind, ReentrantKeeper};

use crate::script::Script;

#[test]
fn the_same_thread_gets_it_again_and_it_is_freed_once_at_the_outermost() {
    let script = Script::new();
    let keeper = ReentrantKeeper::new(script.keeper());
    let outer = keeper.lock("a").unwrap();
    let inner = keeper.lock("a").unwrap();
    let more = keeper.try_lock_for("a", Duration::ZERO).unwrap().unwrap();
    assert_eq!((outer.depth(), inner.token()), (3, outer.token()));
    assert_eq!(script.count("a", "acquire"), 1);

    let elsewhere = |keeper: &ReentrantKeeper| {
        let keeper = keeper.clone();
        let busy = move || keeper.try_lock_for("a", Duration::ZERO).unwrap().is_none();
        thread::spawn(busy).join().unwrap()
    };
    assert!(elsewhere(&keeper), "another thread is another holder");
    drop(outer);
    drop(more);
    assert!(elsewhere(&keeper));
    assert_eq!(script.count("a", "release"), 0);
    inner.finish().unwrap();
    assert_eq!(script.count("a", "release"), 1);
    assert!(!elsewhere(&keeper));
}

#[test]
fn a_lost_lock_is_not_taken_again() {
    let script = Script::new();
    let keeper = ReentrantKeeper::new(script.keeper());
    let outer = keeper.lock("a").unwrap();
    script.clock.advance(Duration::from_secs(60));
    assert_eq!(keeper.lock("a").unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.finish().unwrap_err().kind(), ErrorKind::Lost);
    keeper.lock("a").unwrap().finish().unwrap();
}
