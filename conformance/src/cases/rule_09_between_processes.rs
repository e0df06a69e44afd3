//! Waiting is by notification, and nobody starves or is held up by one who is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireOptions, CancelToken};

use crate::ear::Event;
use crate::rig::{Outcome, Rig, is_busy, take};

/// How often the name changes hands, and how long that may take. Looking at the store at the
/// allowed bound of 1 s, jittered, instead of being woken would take at least twice as long.
const CHANGES: usize = 100;
const WOKEN: Duration = Duration::from_secs(25);

fn woken(rig: &Rig<'_>, began: Instant, changes: usize) {
    let took = began.elapsed();
    assert!(
        took < WOKEN.min(rig.patience()),
        "the name changed hands only {changes} times in {took:?}: the waiters are not woken"
    );
}

pub(super) fn two_keepers_take_turns(rig: &Rig<'_>) -> Outcome {
    let [first, second] = [rig.heard_keeper(), rig.heard_keeper()];
    let began = Instant::now();
    let mut guard = take(&first.0, "a");
    for change in 0..CHANGES {
        let (keeper, ear) = if change % 2 == 0 { &second } else { &first };
        let waits = ear.count(Event::Contended) + 1;
        guard = thread::scope(|scope| {
            let next = scope.spawn(|| take(keeper, "a"));
            ear.wait_for(Event::Contended, waits);
            drop(guard);
            next.join().expect("granted")
        });
        woken(rig, began, change);
    }
    drop(guard);
    rig.nothing_left();
    Ok(())
}

pub(super) fn two_processes_take_turns(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(60_000))?;
    let (keeper, ear) = rig.heard_keeper();
    let began = Instant::now();
    let mut guard = take(&keeper, "a");
    for change in 0..CHANGES / 2 {
        process.wait_for("a");
        drop(guard);
        process.expect_token();
        guard = thread::scope(|scope| {
            let next = scope.spawn(|| take(&keeper, "a"));
            ear.wait_for(Event::Contended, change + 1);
            process.release();
            next.join().expect("granted")
        });
        woken(rig, began, change);
    }
    drop(guard);
    rig.nothing_left();
    Ok(())
}

pub(super) fn second_keeper_under_full_load(rig: &Rig<'_>) -> Outcome {
    let (first, ear) = rig.heard_keeper();
    let second = rig.keeper();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(take(&first, "a"));
                }
            });
        }
        ear.wait_for(Event::Acquired, 100);
        let turns: Vec<_> = (0..5).map(|_| second.lock("a").map(drop)).collect();
        stop.store(true, Ordering::SeqCst);
        for turn in turns {
            turn.expect("the second keeper gets its turn");
        }
    });
    rig.nothing_left();
    Ok(())
}

pub(super) fn second_process_under_full_load(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(60_000))?;
    process.say("load a 10");
    process.expect("loading");
    let keeper = rig.keeper();
    for _ in 0..5 {
        drop(take(&keeper, "a"));
    }
    Ok(())
}

/// Who released does not get the name again before the one that waited for it, though it is
/// quicker than anybody who has to be woken first.
pub(super) fn nobody_snatches_it_from_the_one_woken(rig: &Rig<'_>) -> Outcome {
    const IN_A_ROW: u32 = 8;
    const AT_MOST: u32 = 8;
    let (holder, (waiter, ear)) = (rig.keeper(), rig.heard_keeper());
    // A provider tells that it will wait before it stands in line, and nobody can see from outside
    // when it does. So the waiter is given time, and more of it each time that it was not enough:
    // where the name can be snatched, time does not help.
    let mut time = Duration::from_millis(5);
    let (mut kept, mut snatched) = (0, 0);
    while kept < IN_A_ROW {
        assert!(
            snatched < AT_MOST,
            "snatched {snatched} times, with {time:?} to stand in line"
        );
        let waits = ear.count(Event::Contended) + 1;
        let held = take(&holder, "a");
        let is_kept = thread::scope(|scope| {
            let (tell, done) = channel::<()>();
            let waiter = &waiter;
            let granted = scope.spawn(move || {
                let guard = take(waiter, "a");
                let _ = done.recv();
                drop(guard);
            });
            ear.wait_for(Event::Contended, waits);
            thread::sleep(time);
            drop(held);
            let is_kept = is_busy(&holder, "a");
            drop(tell);
            granted.join().expect("granted");
            is_kept
        });
        if is_kept {
            kept += 1;
        } else {
            (kept, snatched, time) = (0, snatched + 1, time * 2);
        }
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn one_that_gave_up_stalls_nobody(rig: &Rig<'_>) -> Outcome {
    let held = take(&rig.keeper(), "a");
    let (impatient, (patient, ear)) = (rig.keeper(), rig.heard_keeper());
    thread::scope(|scope| {
        let gave_up = scope.spawn(|| impatient.try_lock_for("a", Duration::from_millis(100)));
        let granted = scope.spawn(|| drop(take(&patient, "a")));
        ear.wait_for(Event::Contended, 1);
        let answer = gave_up
            .join()
            .expect("no panic")
            .expect("the store answers");
        assert!(answer.is_none());
        drop(held);
        granted.join().expect("granted");
    });
    rig.nothing_left();
    Ok(())
}

/// One gives up at the very moment at which it may be woken: the wake must not be lost with it.
pub(super) fn giving_up_as_it_is_released(rig: &Rig<'_>) -> Outcome {
    let holder = rig.keeper();
    let ((first, first_ear), (second, second_ear)) = (rig.heard_keeper(), rig.heard_keeper());
    for round in 1..=30 {
        let held = take(&holder, "a");
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                // Granted or cancelled: either may come first.
                drop(first.acquire("a", &AcquireOptions::new().wait_forever().cancel(&cancel)));
            });
            first_ear.wait_for(Event::Contended, round);
            let second = scope.spawn(|| drop(take(&second, "a")));
            second_ear.wait_for(Event::Contended, round);
            scope.spawn(|| drop(held));
            cancel.cancel();
            first.join().expect("no panic");
            second.join().expect("granted");
        });
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn a_killed_waiter_stalls_nobody(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(60_000))?;
    let held = take(&rig.keeper(), "a");
    process.wait_for("a");
    let (keeper, ear) = rig.heard_keeper();
    thread::scope(|scope| {
        let granted = scope.spawn(|| drop(take(&keeper, "a")));
        ear.wait_for(Event::Contended, 1);
        process.kill();
        drop(held);
        granted
            .join()
            .expect("granted, though one before it was killed");
    });
    rig.nothing_left();
    Ok(())
}

/// It may be woken, and may be granted the name while it is stopped; neither keeps the name from
/// the others, nor the name from it when it goes on.
#[cfg(unix)]
pub(super) fn a_stopped_waiter_stalls_nobody(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(1_000))?;
    let held = take(&rig.keeper(), "a");
    process.wait_for("a");
    let (keeper, ear) = rig.heard_keeper();
    let token = thread::scope(|scope| {
        let granted = scope.spawn(|| take(&keeper, "a").token().get());
        ear.wait_for(Event::Contended, 1);
        process.stop();
        drop(held);
        granted
            .join()
            .expect("granted, though one before it is stopped")
    });
    process.resume();
    assert!(process.expect_token() > token);
    process.release();
    rig.nothing_left();
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn a_stopped_waiter_stalls_nobody(_: &Rig<'_>) -> Outcome {
    Err(crate::rig::Skip(
        "this system cannot stop a process".to_owned(),
    ))
}
