//! Rule 17: several names are locked together, all or none.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{ErrorKind, LockKeeper, Released, Wait};

use crate::rig::{Outcome, Rig, build, is_busy, take};

const NAMES: [&str; 3] = ["a", "b", "c"];

pub(super) fn several_names_are_held_and_released_together(rig: &Rig<'_>) -> Outcome {
    let [keeper, other] = [rig.keeper(), rig.keeper()];
    let mut last = None;
    for _ in 0..3 {
        let guards = keeper
            .lock_all(["c", "a", "b", "a"])
            .expect("they are free");
        assert!(guards.tokens().map(|(name, _)| name.as_str()).eq(NAMES));
        for name in NAMES {
            assert!(is_busy(&other, name), "{name} is held");
        }
        let token = guards.token("b");
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
        guards.renew().expect("they are held");
        assert_eq!(guards.release().expect("the store replies"), Released::Done);
    }
    let guards = other.try_lock_all(NAMES).expect("the store replies");
    drop(guards.expect("they were released"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn name_that_is_held_leaves_none_of_them_locked(rig: &Rig<'_>) -> Outcome {
    let [keeper, other] = [rig.keeper(), rig.keeper()];
    for held in NAMES {
        let guard = take(&other, held);
        let refused = keeper.try_lock_all(NAMES).expect("the store replies");
        assert!(refused.is_none(), "{held} is held");
        let others = NAMES.into_iter().filter(|name| *name != held);
        let free = other.lock_all(others).expect("none of them is held");
        drop(free);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| keeper.lock_all(NAMES));
            guard.release().expect("the store replies");
            let guards = waiting.join().expect("it does not panic");
            drop(guards.expect("it was released"));
        });
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn wait_for_several_names_ends_at_one_deadline(rig: &Rig<'_>) -> Outcome {
    let [keeper, other] = [rig.keeper(), rig.keeper()];
    let _last = take(&other, "c");
    let wait = Duration::from_millis(500);
    // On a busy machine, the reply may come later than the wait ends, and that is an error.
    rig.until("a wait ends with a reply", || {
        match keeper.try_lock_all_for(NAMES, wait) {
            Ok(granted) => {
                assert!(granted.is_none(), "one of them is held");
                true
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                false
            }
        }
    });
    // A store that replies slowly is given them back in the background.
    rig.until("the others are given back", || {
        let free = other.try_lock_all(["a", "b"]);
        free.expect("the store replies").is_some()
    });
    let keeper = rig.builder().wait(Wait::AtMost(wait));
    let keeper = build(keeper);
    rig.until("a wait times out", || {
        let refused = keeper.lock_all(NAMES).expect_err("it is held");
        refused.kind() == ErrorKind::TimedOut
    });
    Ok(())
}

/// No thread waits for another one in a circle, and no name has two holders.
pub(super) fn overlapping_sets_are_granted_to_crowds(rig: &Rig<'_>) -> Outcome {
    const ROUNDS: usize = 10;
    let keepers = [rig.keeper(), rig.keeper()];
    let holders: [AtomicU32; 4] = Default::default();
    let names = ["seat:0", "seat:1", "seat:2", "seat:3"];
    let book = |keeper: &LockKeeper, first: usize| {
        for round in 0..ROUNDS {
            let seats = [first, first + 1 + round % 3].map(|seat| seat % names.len());
            let guards = keeper.lock_all(seats.map(|seat| names[seat]));
            let guards = guards.expect("the others release them");
            for seat in seats {
                assert_eq!(
                    holders[seat].fetch_add(1, Ordering::SeqCst),
                    0,
                    "two have it"
                );
            }
            for seat in seats {
                holders[seat].fetch_sub(1, Ordering::SeqCst);
            }
            drop(guards);
        }
    };
    thread::scope(|scope| {
        for keeper in &keepers {
            for first in 0..4 {
                let book = &book;
                scope.spawn(move || book(keeper, first));
            }
        }
    });
    rig.nothing_left();
    Ok(())
}
