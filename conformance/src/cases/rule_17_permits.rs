//! Rule 17: at most as many permits are held as the limit allows, each in a slot of its own.

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{ErrorKind, LockKeeper, Mode, Permit, Released};

use crate::modes::{attempt_in, is_busy_in, semaphore, take_permit, take_shared};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take};
use crate::tap::Fault;

const FIVE: Mode = Mode::Permit { limit: 5 };

/// Releases a permit. A drop may leave that to the keeper's threads.
fn release(permit: Permit) {
    let released = permit.release();
    assert_eq!(released.expect("the store replies"), Released::Done);
}

pub(super) fn permits_have_the_smallest_free_slots(rig: &Rig<'_>) -> Outcome {
    const LIMIT: u32 = 4;
    rig.needs_mode(FIVE)?;
    let keepers = [rig.keeper(), rig.keeper()];
    let mut tokens = HashMap::new();
    let mut acquire = |keeper: &LockKeeper| {
        let permit = take_permit(keeper, "a", LIMIT);
        let (slot, token) = (permit.slot(), permit.token().get());
        let last = tokens.insert(slot, token);
        assert!(last < Some(token), "slot {slot}: {token} after {last:?}");
        permit
    };
    let alternating = keepers.iter().cycle().take(LIMIT as usize);
    let permits: Vec<_> = alternating.map(&mut acquire).collect();
    let slots = |permits: &[Permit]| permits.iter().map(Permit::slot).collect::<Vec<_>>();
    assert_eq!(slots(&permits), [0, 1, 2, 3]);
    for keeper in &keepers {
        let further = attempt_in(keeper, "a", Mode::Permit { limit: LIMIT });
        assert!(further.is_none(), "{further:?} beside {permits:?}");
    }
    let (ended, mut permits): (Vec<_>, Vec<_>) = permits
        .into_iter()
        .partition(|permit| permit.slot() % 2 == 0);
    ended.into_iter().for_each(release);
    permits.extend(keepers.iter().map(&mut acquire));
    assert_eq!(slots(&permits), [1, 3, 0, 2]);
    permits.into_iter().for_each(release);
    for keeper in &keepers {
        let permit = acquire(keeper);
        assert_eq!(permit.slot(), 0);
        release(permit);
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn many_permits_are_held_at_once(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(FIVE)?;
    let limit = rig.provider().capabilities().max_permits().min(100);
    let keepers = [rig.keeper(), rig.keeper()];
    let alternating = keepers.iter().cycle().take(limit as usize);
    let permits: Vec<_> = alternating
        .map(|keeper| take_permit(keeper, "a", limit))
        .collect();
    let slots: Vec<_> = permits.iter().map(Permit::slot).collect();
    assert_eq!(slots, Vec::from_iter(0..limit));
    assert!(is_busy_in(&rig.keeper(), "a", Mode::Permit { limit }));
    drop(permits);
    rig.nothing_left();
    Ok(())
}

/// Two permits end, and both waiters are granted them while the third is still held.
pub(super) fn waiters_get_the_permits_that_end(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(FIVE)?;
    let holder = rig.keeper();
    let permits = [(); 3].map(|()| take_permit(&holder, "a", 3));
    let waiters: Vec<_> = (0..3).map(|_| rig.recorded_keeper()).collect();
    let (sender, granted) = channel();
    thread::scope(|scope| {
        for (keeper, recorder) in &waiters {
            let sender = sender.clone();
            scope.spawn(move || {
                // The case has failed if it does not receive.
                let _ = sender.send(take_permit(keeper, "a", 3));
            });
            recorder.wait_for(Event::Contended, 1);
        }
        let next = || {
            let permit = granted.recv_timeout(rig.timeout());
            permit.expect("a waiter is granted a permit")
        };
        let [first, second, kept] = permits;
        drop((first, second));
        let freed = [next(), next()];
        let mut slots = freed.each_ref().map(Permit::slot);
        slots.sort_unstable();
        assert_eq!(slots, [0, 1]);
        assert!(granted.try_recv().is_err(), "a fourth permit was granted");
        assert!(kept.is_held());
        let [first, second] = freed;
        drop(first);
        assert_ne!(next().slot(), second.slot());
    });
    rig.nothing_left();
    Ok(())
}

fn assert_mismatch(keeper: &LockKeeper, limit: u32) {
    let semaphore = semaphore(keeper, "a", limit);
    for answer in [semaphore.try_acquire(), semaphore.acquire().map(Some)] {
        let error = answer.expect_err("permits of another limit are held");
        assert_eq!(error.kind(), ErrorKind::LimitMismatch, "{error:?}");
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
    }
}

/// Neither a keeper that holds permits nor another one waits for a permit of another limit.
pub(super) fn another_limit_is_a_mismatch_while_permits_are_held(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(FIVE)?;
    let (holder, other) = (rig.keeper(), rig.keeper());
    let held = [take_permit(&holder, "a", 2), take_permit(&holder, "a", 2)];
    for keeper in [&holder, &other] {
        assert_mismatch(keeper, 1);
        assert_mismatch(keeper, 3);
    }
    let [first, second] = held;
    release(first);
    for keeper in [&holder, &other] {
        assert_mismatch(keeper, 3);
    }
    assert!(second.is_held());
    release(second);
    release(take_permit(&other, "a", 3));
    release(take_permit(&holder, "a", 1));
    rig.nothing_left();
    Ok(())
}

/// The attempt comes while the store answers another thread of the keeper, which asks for another limit.
pub(super) fn mismatch_of_one_thread_is_not_told_to_another(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(FIVE)?;
    let held = take_permit(&rig.keeper(), "a", 2);
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    tap.set(Fault::Late(Duration::from_millis(100)));
    thread::scope(|scope| {
        let refused = scope.spawn(|| assert_mismatch(&keeper, 3));
        rig.until("the store is asked", || tap.requests() > 0);
        let permit = semaphore(&keeper, "a", 2).try_acquire();
        let permit = permit.expect("no permit of another limit is held");
        drop(permit.expect("the second permit is free"));
        refused.join().expect("it is refused");
    });
    release(held);
    rig.nothing_left();
    Ok(())
}

/// The mismatch is seen behind a thread of the same keeper that waits for a permit of the first limit.
pub(super) fn another_limit_is_a_mismatch_behind_waiters(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(FIVE)?;
    for is_of_waiter in [true, false] {
        let ((keeper, recorder), other) = (rig.recorded_keeper(), rig.keeper());
        let held = match is_of_waiter {
            true => take_permit(&keeper, "a", 1),
            false => take_permit(&other, "a", 1),
        };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take_permit(&keeper, "a", 1));
            recorder.wait_for(Event::Contended, 1);
            let mismatching = scope.spawn(|| {
                assert_mismatch(&keeper, 2);
                assert_mismatch(&other, 2);
            });
            rig.until("the mismatch is reported", || mismatching.is_finished());
            mismatching.join().expect("the limits are different");
            drop(held);
            drop(waiting.join().expect("the waiter is granted the permit"));
        });
        rig.nothing_left();
    }
    Ok(())
}

pub(super) fn permits_and_the_lock_of_a_name_are_separate(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(FIVE)?;
    let keepers = [rig.keeper(), rig.keeper()];
    let permits = keepers.each_ref().map(|keeper| take_permit(keeper, "a", 2));
    let lock = take(&keepers[0], "a");
    for keeper in &keepers {
        assert!(is_busy(keeper, "a"));
        assert!(is_busy_in(keeper, "a", Mode::Permit { limit: 2 }));
    }
    let [first, second] = permits;
    drop(first);
    assert!(is_busy(&keepers[1], "a"), "a permit's end freed the lock");
    let again = take_permit(&keepers[1], "a", 2);
    lock.renew().expect("the lock is held");
    drop(lock);
    assert!(
        is_busy_in(&keepers[0], "a", Mode::Permit { limit: 2 }),
        "the lock's end freed a permit"
    );
    if rig.has_mode(Mode::Shared) {
        drop(keepers.each_ref().map(|keeper| take_shared(keeper, "a")));
    }
    for permit in [second, again] {
        permit.renew().expect("the permit is held");
    }
    rig.nothing_left();
    Ok(())
}
