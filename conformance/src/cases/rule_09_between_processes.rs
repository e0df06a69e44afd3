//! Rule 9: waiting between processes is by notification, and no waiter starves or blocks another.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireOptions, CancelToken, LockKeeper, Mode};

use crate::lateness::Lateness;
use crate::modes::{Pair, assert_not_granted, is_busy_in, take_in};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, take};

/// How often the name goes from one keeper to the other.
const CHANGES: usize = 24;
/// The limit for all changes. A store that polls once a second, as the contract allows after a lost
/// notification, takes at least twice as long.
const LIMIT: Duration = Duration::from_secs(12);
/// How many uncontended locks a change may cost on a machine that is too busy for the limit.
const LOCKS_A_CHANGE: u32 = 10;
/// How often the machine may delay a thread in one change.
const THREADS_A_CHANGE: u32 = 20;

/// Compares the time of the changes with a limit, and with the time of uncontended locks in between.
struct Pace {
    keeper: LockKeeper,
    /// The limit for all changes. It is shorter in a suite with a shorter time-out.
    limit: Duration,
    began: Instant,
    locks: u32,
    locking: Duration,
    lateness: Lateness,
}

impl Pace {
    fn new(rig: &Rig<'_>) -> Self {
        Self {
            keeper: rig.keeper(),
            limit: LIMIT.min(rig.timeout()),
            began: Instant::now(),
            locks: 0,
            locking: Duration::ZERO,
            lateness: Lateness::measure(),
        }
    }

    /// Checks that the waiters are notified: the changes so far took less than the limit for all changes.
    fn check(&mut self, changes: usize) {
        if changes.is_multiple_of(5) {
            let began = Instant::now();
            let lock = take(&self.keeper, "uncontended");
            lock.release().expect("the store replies");
            self.locking += began.elapsed();
            self.locks += 1;
        }
        let all = u32::try_from(CHANGES).expect("it is small");
        let lock = self.locking / self.locks;
        let change = lock * LOCKS_A_CHANGE + self.lateness.mean() * THREADS_A_CHANGE;
        let limit = self.limit.max(change * all);
        let took = self.began.elapsed() - self.locking;
        assert!(
            took < limit,
            "only {changes} changes in {took:?} of {limit:?}: the waiters are not notified"
        );
    }
}

pub(super) fn release_wakes_the_other_keeper(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| pass_between_keepers(rig, pair))
}

/// Two keepers acquire a name in turn, each in its mode. While one holds it, the other waits.
fn pass_between_keepers(rig: &Rig<'_>, pair: Pair) -> Outcome {
    let (name, modes) = (&pair.name(), [pair.held, pair.rival]);
    let keepers = [rig.recorded_keeper(), rig.recorded_keeper()];
    let mut pace = Pace::new(rig);
    let mut guard = take_in(&keepers[0].0, name, modes[0]);
    for change in 0..CHANGES {
        let next = (change + 1) % 2;
        let (keeper, recorder) = &keepers[next];
        let waits = recorder.count(Event::Contended) + 1;
        guard = thread::scope(|scope| {
            let next = scope.spawn(|| take_in(keeper, name, modes[next]));
            recorder.wait_for(Event::Contended, waits);
            let token = guard.token();
            drop(guard);
            let guard = next.join().expect("the waiter is granted the name");
            assert!(guard.token() > token, "the tokens of a name grow");
            guard
        });
        pace.check(change);
    }
    Ok(())
}

pub(super) fn release_wakes_the_other_process(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(60_000))?;
    let (keeper, recorder) = rig.recorded_keeper();
    let mut pace = Pace::new(rig);
    let mut guard = take(&keeper, "a");
    for change in 0..CHANGES / 2 {
        process.wait_for("a");
        drop(guard);
        process.expect_token();
        guard = thread::scope(|scope| {
            let next = scope.spawn(|| take(&keeper, "a"));
            recorder.wait_for(Event::Contended, change + 1);
            process.release();
            next.join().expect("the waiter is granted the name")
        });
        pace.check(change);
    }
    drop(guard);
    rig.nothing_left();
    Ok(())
}

pub(super) fn busy_process_does_not_starve_another(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(60_000))?;
    process.send("load a 10");
    process.expect("loading");
    let keeper = rig.keeper();
    for _ in 0..5 {
        drop(take(&keeper, "a"));
    }
    Ok(())
}

/// The waiter is granted the name before the keeper that released it. That keeper's next attempt comes
/// earlier, since the waiter has to be woken first.
pub(super) fn woken_waiter_is_served_before_the_releaser(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| pass_woken_waiter(rig, pair))
}

/// A keeper releases a name that it holds in the first mode, while a waiter waits for the second mode.
fn pass_woken_waiter(rig: &Rig<'_>, pair: Pair) -> Outcome {
    const IN_A_ROW: u32 = 8;
    const AT_MOST: u32 = 16;
    // A waiter needs less to queue on any machine. In a longer pause, a busy machine may be too late to keep its place.
    const LONGEST: Duration = Duration::from_millis(640);
    let (name, mode, rival) = (&pair.name(), pair.held, pair.rival);
    let (holder, (waiter, recorder)) = (rig.keeper(), rig.recorded_keeper());
    // A provider calls `contended` before it queues in the store, and the case cannot see when it
    // has queued. So the case pauses, and for longer whenever the waiter was overtaken. If the
    // store lets the releaser overtake, no pause is long enough.
    let mut pause = Duration::from_millis(5);
    let (mut served, mut overtaken) = (0, 0);
    while served < IN_A_ROW {
        assert!(
            overtaken < AT_MOST,
            "the waiter was overtaken {overtaken} times, at last with {pause:?} to queue"
        );
        let waits = recorder.count(Event::Contended) + 1;
        let held = take_in(&holder, name, mode);
        let is_served = thread::scope(|scope| {
            let (sender, done) = channel::<()>();
            let waiter = &waiter;
            let granted = scope.spawn(move || {
                let guard = take_in(waiter, name, rival);
                let _ = done.recv();
                drop(guard);
            });
            recorder.wait_for(Event::Contended, waits);
            thread::sleep(pause);
            drop(held);
            let is_served = is_busy_in(&holder, name, mode);
            drop(sender);
            granted.join().expect("the waiter is granted the name");
            is_served
        });
        if is_served {
            served += 1;
        } else {
            (served, overtaken, pause) = (0, overtaken + 1, LONGEST.min(pause * 2));
        }
    }
    Ok(())
}

pub(super) fn timed_out_waiter_does_not_block_the_next(rig: &Rig<'_>) -> Outcome {
    let held = take(&rig.keeper(), "a");
    let (first, (second, recorder)) = (rig.keeper(), rig.recorded_keeper());
    thread::scope(|scope| {
        let timed_out = scope.spawn(|| first.try_lock_for("a", Duration::from_secs(2)));
        let granted = scope.spawn(|| drop(take(&second, "a")));
        recorder.wait_for(Event::Contended, 1);
        assert_not_granted(timed_out.join().expect("the thread does not panic"));
        drop(held);
        granted.join().expect("the waiter is granted the name");
    });
    rig.nothing_left();
    Ok(())
}

/// A waiter may be cancelled at the moment at which it is woken. Then the next waiter must be woken.
pub(super) fn cancelled_waiter_passes_its_wakeup_on(rig: &Rig<'_>) -> Outcome {
    let holder = rig.keeper();
    let ((first, first_recorder), (second, second_recorder)) =
        (rig.recorded_keeper(), rig.recorded_keeper());
    for round in 1..=15 {
        let held = take(&holder, "a");
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                // The grant or the cancellation may come first.
                drop(first.acquire("a", &AcquireOptions::new().wait_forever().cancel(&cancel)));
            });
            first_recorder.wait_for(Event::Contended, round);
            let second = scope.spawn(|| drop(take(&second, "a")));
            second_recorder.wait_for(Event::Contended, round);
            scope.spawn(|| drop(held));
            cancel.cancel();
            first.join().expect("the thread does not panic");
            second.join().expect("the waiter is granted the name");
        });
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn killed_waiter_does_not_block_the_next(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| pass_killed_waiter(rig, pair))
}

/// Kills a process that waits for a name in the second mode while it is held in the first.
fn pass_killed_waiter(rig: &Rig<'_>, pair: Pair) -> Outcome {
    let (name, held, rival) = (&pair.name(), pair.held, pair.rival);
    let mut process = rig.process(rig.renewed(60_000))?;
    let held = take_in(&rig.keeper(), name, held);
    process.wait_for_in(name, rival);
    let (keeper, recorder) = rig.recorded_keeper();
    thread::scope(|scope| {
        let granted = scope.spawn(|| drop(take_in(&keeper, name, rival)));
        recorder.wait_for(Event::Contended, 1);
        process.kill();
        drop(held);
        granted
            .join()
            .expect("the waiter behind the killed one is granted the name");
    });
    Ok(())
}

pub(super) fn stopped_waiter_does_not_block_the_next(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| pass_stopped_waiter(rig, pair))
}

/// Stops a process that waits for a name in the second mode while it is held in the first.
///
/// A store may wake the stopped waiter or grant it the name. The other waiters get the name even so, and
/// the stopped waiter gets it after it resumes.
fn pass_stopped_waiter(rig: &Rig<'_>, pair: Pair) -> Outcome {
    let (name, held, rival) = (&pair.name(), pair.held, pair.rival);
    let mut process = rig.process(rig.renewed(5_000))?;
    let held = take_in(&rig.keeper(), name, held);
    process.wait_for_in(name, rival);
    let (keeper, recorder) = rig.recorded_keeper();
    let token = thread::scope(|scope| {
        let granted = scope.spawn(|| take_in(&keeper, name, rival).token().get());
        recorder.wait_for(Event::Contended, 1);
        rig.stop(&process);
        drop(held);
        granted
            .join()
            .expect("the waiter behind the stopped one is granted the name")
    });
    process.resume();
    let resumed = process.expect_token();
    // A store may have granted it a shared lease before it was stopped.
    assert!(resumed > token || rival == Mode::Shared);
    process.release();
    Ok(())
}
