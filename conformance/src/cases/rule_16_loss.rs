//! Rule 16: where the store tells holders of a loss, their guards are lost without a renewal, and by nothing
//! else.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{LockGuard, WaitOutcome};

use super::admin::{admin, deadline, find};
use crate::fixture::Loss;
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, take};

/// The first renewal comes after a third of it: too late for any case.
const TTL_MS: u64 = 3_600_000;

fn take_for_long(rig: &Rig<'_>, name: &str) -> LockGuard {
    take(&rig.keeper_with(rig.renewed(TTL_MS)), name)
}

fn assert_lost(rig: &Rig<'_>, guard: &LockGuard) {
    assert_eq!(guard.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);
}

pub(super) fn wiped_store_tells_its_holders(rig: &Rig<'_>) -> Outcome {
    rig.needs_notice_of(Loss::Wiped)?;
    let guards = ["a", "b"].map(|name| take_for_long(rig, name));
    rig.wipe()?;
    for guard in &guards {
        assert_lost(rig, guard);
    }
    drop(guards);
    drop(take(&rig.keeper(), "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn ended_lease_is_told_to_its_holder(rig: &Rig<'_>) -> Outcome {
    rig.needs_notice_of(Loss::Ended)?;
    let guard = take_for_long(rig, "a");
    rig.end_lease("a")?;
    assert_lost(rig, &guard);
    drop(guard);
    drop(take(&rig.keeper(), "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn forced_release_is_told_to_its_holder(rig: &Rig<'_>) -> Outcome {
    rig.needs_notice_of(Loss::Unlocked)?;
    let guards = ["a", "b"].map(|name| take_for_long(rig, name));
    let asker = rig.keeper();
    let seen = find(rig, &asker, "a").expect("the name is held");
    let freed = admin(&asker).force_release(&seen, deadline(rig));
    assert!(freed.expect("the store replies"));
    let [lost, kept] = guards;
    assert_lost(rig, &lost);
    kept.renew().expect("the other name is still held");
    drop((lost, kept));
    rig.nothing_left();
    Ok(())
}

/// Takes the lock away in the way of which the store tells its holder.
fn take_away(rig: &Rig<'_>, name: &str) -> Outcome {
    if rig.needs_notice_of(Loss::Ended).is_ok() {
        return rig.end_lease(name);
    }
    rig.needs_notice_of(Loss::Unlocked)?;
    let asker = rig.keeper();
    let seen = find(rig, &asker, name).expect("the name is held");
    let freed = admin(&asker).force_release(&seen, deadline(rig));
    assert!(freed.expect("the store replies"));
    Ok(())
}

/// A keeper that verifies its leases less often while losses go on would be late with all of the last ones.
pub(super) fn losses_in_a_row_are_told_as_soon_as_the_first(rig: &Rig<'_>) -> Outcome {
    const LOSSES: usize = 30;
    const LATE: Duration = Duration::from_millis(500);
    let keeper = rig.keeper_with(rig.renewed(TTL_MS));
    let mut fastest = Duration::MAX;
    for loss in 0..LOSSES {
        let guard = take(&keeper, "a");
        take_away(rig, "a")?;
        let taken_at = Instant::now();
        assert_lost(rig, &guard);
        if loss >= LOSSES / 2 {
            fastest = fastest.min(taken_at.elapsed());
        }
    }
    assert!(fastest < LATE, "each of the last losses took {fastest:?}");
    rig.nothing_left();
    Ok(())
}

/// A signal that a program handles interrupts its system calls: that of a profiler, or of a child's end.
pub(super) fn handled_signals_lose_no_lease(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(TTL_MS))?;
    let (keeper, recorder) = rig.recorded_keeper();
    let interruption = process.interrupt()?;
    for _ in 0..15 {
        process.acquire("a");
        let waiter = &keeper;
        let next = thread::scope(|scope| {
            let waits = recorder.count(Event::Contended) + 1;
            let next = scope.spawn(move || take(waiter, "a"));
            recorder.wait_for(Event::Contended, waits);
            process.release();
            next.join().expect("the waiter is granted the name")
        });
        process.wait_for("a");
        drop(next);
        process.expect_token();
        process.release();
    }
    drop(interruption);
    process.end();
    rig.nothing_left();
    Ok(())
}

/// A release gives up a store that does not answer, although signals come more often than that takes.
pub(super) fn handled_signals_extend_no_limit(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(TTL_MS))?;
    process.acquire("a");
    let restore = rig.cut_off()?;
    let interruption = process.interrupt()?;
    process.send("release");
    let answer = process.next_line();
    assert!(answer.starts_with("Some(Err("), "{answer}");
    drop(interruption);
    drop(restore);
    process.end();
    Ok(())
}
