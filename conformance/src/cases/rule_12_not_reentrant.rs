//! Rule 12: a thread that acquires a lock twice waits like any other thread.

use std::time::Duration;

use lockkeeper_core::{ErrorKind, Wait};

use crate::rig::{Outcome, Rig, build, is_busy, take};

pub(super) fn holding_thread_waits_like_any_other(rig: &Rig<'_>) -> Outcome {
    let wait = Duration::from_millis(50);
    let keeper = build(rig.builder().wait(Wait::AtMost(wait)));
    let held = take(&keeper, "a");
    assert!(is_busy(&keeper, "a"));
    let answer = keeper.try_lock_for("a", wait);
    assert!(matches!(answer, Ok(None)), "granted twice: {answer:?}");
    let error = keeper.lock("a").expect_err("this thread holds the name");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(held.is_held());
    held.release().expect("the store answers");
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}
