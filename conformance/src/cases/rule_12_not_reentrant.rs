//! Rule 12: a thread that acquires a lock twice waits like any other thread.

use std::time::Duration;

use lockkeeper_core::{ErrorKind, Wait};

use crate::rig::{Outcome, Rig, build, is_busy};

pub(super) fn holding_thread_waits_like_any_other(rig: &Rig<'_>) -> Outcome {
    let wait = Duration::from_millis(50);
    let keeper = build(rig.builder().wait(Wait::AtMost(wait)));
    // Its own waits are for the queue of this process, and too short for a store that replies late.
    let take = || {
        let taken = keeper.try_lock_for("a", rig.timeout());
        taken.expect("the store replies").expect("it is free")
    };
    let held = take();
    assert!(is_busy(&keeper, "a"));
    let answer = keeper.try_lock_for("a", wait);
    assert!(matches!(answer, Ok(None)), "granted twice: {answer:?}");
    let error = keeper.lock("a").expect_err("this thread holds the name");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    let says = error.to_string();
    assert!(says.contains("a guard of this process"), "{says}");
    assert!(held.is_held());
    held.release().expect("the store answers");
    drop(take());
    rig.nothing_left();
    Ok(())
}
