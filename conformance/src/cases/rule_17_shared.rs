//! Rule 17: any number of readers hold a name together, or one writer, first come, first served.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{CancelToken, LockGuard, LockKeeper, Mode, Released, WaitOutcome};

use crate::modes::{attempt_in, granted, in_mode, is_busy_in, take_in, take_shared};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take};

/// A limit that no hand-over reaches.
const UNLIMITED: Duration = Duration::from_secs(600);

pub(super) fn readers_of_several_keepers_hold_together(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    let keepers = [rig.keeper(), rig.keeper(), rig.keeper()];
    let read = |keeper| (0..5).map(|_| take_shared(keeper, "a")).collect::<Vec<_>>();
    let mut guards: Vec<_> = keepers.iter().flat_map(read).collect();
    guards.extend(attempt_in(&keepers[0], "a", Mode::Shared));
    assert_eq!(guards.len(), 16, "an attempt is granted beside readers");
    let first = guards.pop();
    for keeper in &keepers {
        assert!(is_busy(keeper, "a"), "a writer was granted beside readers");
    }
    drop(guards);
    assert!(is_busy(&keepers[1], "a"), "the last reader still has it");
    drop(first);
    let writing = take(&keepers[2], "a");
    for keeper in &keepers {
        let read = attempt_in(keeper, "a", Mode::Shared);
        assert!(read.is_none(), "{read:?} beside a writer");
    }
    drop(writing);
    rig.nothing_left();
    Ok(())
}

/// Returns how many leases the guards have.
fn leases(guards: &[LockGuard]) -> usize {
    let epochs = guards.iter().map(|guard| guard.token().get() >> 7);
    epochs.collect::<HashSet<_>>().len()
}

/// A lease that was handed over as often as it may be is replaced by a fresh one while readers still have it.
pub(super) fn fresh_lease_takes_over_from_an_old_one(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    let keeper = build(rig.builder().handover_max(2).handover_time(UNLIMITED));
    let mut guards: Vec<_> = (0..9).map(|_| take_shared(&keeper, "a")).collect();
    assert_eq!(leases(&guards), 3, "three guards have each lease");
    let tokens: Vec<_> = guards.iter().map(|guard| guard.token().get()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // The leases end in another order than they came.
    for guard in guards.drain(3..6) {
        guard.release().expect("the store replies");
    }
    for guard in &guards {
        guard.renew().expect("the other leases stay");
    }
    let rival = rig.keeper();
    assert!(is_busy(&rival, "a"));
    drop(guards);
    assert!(take(&rival, "a").token().get() > tokens[8]);
    rig.nothing_left();
    Ok(())
}

/// A fixed lease ends with its guard, and takes no other guard with it.
pub(super) fn fixed_leases_are_not_shared(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    let keeper = rig.keeper();
    let policies = [rig.fixed(300), rig.fixed(60_000), rig.renewed(60_000)];
    let take = |lease| granted(&keeper, "a", &in_mode(Mode::Shared).lease(lease));
    let guards = policies.map(take);
    assert_eq!(leases(&guards), 3, "each has a lease of its own");
    let [expiring, fixed, renewed] = guards;
    let outcome = expiring.lost_signal().wait(rig.timeout());
    assert_eq!(outcome, WaitOutcome::Lost);
    let released = expiring.release().expect("the store replies");
    assert_eq!(released, Released::AlreadyLost);
    assert!(fixed.is_held() && renewed.is_held());
    drop(fixed);
    renewed.renew().expect("the other leases stay");
    assert!(is_busy(&rig.keeper(), "a"));
    drop(renewed);
    rig.nothing_left();
    Ok(())
}

/// What a thread that has acquired the name tells the case, and waits for.
struct Entry {
    label: &'static str,
    guard: LockGuard,
}

/// Acquires a name and sends the guard.
fn enter(keeper: &LockKeeper, mode: Mode, label: &'static str, entries: &Sender<Entry>) {
    let guard = take_in(keeper, "a", mode);
    // The case has failed if it does not receive.
    let _ = entries.send(Entry { label, guard });
}

fn next(rig: &Rig<'_>, entries: &Receiver<Entry>) -> Entry {
    let entry = entries.recv_timeout(rig.timeout());
    entry.expect("a waiter is granted the name")
}

/// A reader of one keeper holds the name, a writer waits, and a reader of a third keeper comes. The writer is
/// of another keeper than the first reader, or of the same.
pub(super) fn reader_waits_behind_a_waiting_writer(rig: &Rig<'_>) -> Outcome {
    const ROUNDS: u32 = 5;
    rig.needs_mode(Mode::Shared)?;
    for is_of_reader in [false, true] {
        // A waiter that a busy machine delays may be overtaken.
        let in_order = (0..ROUNDS).any(|_| writer_is_before_late_reader(rig, is_of_reader));
        assert!(in_order, "the writer was passed over in {ROUNDS} rounds");
    }
    Ok(())
}

fn writer_is_before_late_reader(rig: &Rig<'_>, is_of_reader: bool) -> bool {
    let (reader, reader_waits) = rig.recorded_keeper();
    let (other, other_waits) = rig.recorded_keeper();
    let (writer, writer_waits) = match is_of_reader {
        true => (&reader, reader_waits),
        false => (&other, other_waits),
    };
    let (late, late_waits) = rig.recorded_keeper();
    let readers = [take_shared(&reader, "a"), take_shared(&reader, "a")];
    let (sender, entries) = channel();
    let in_order = thread::scope(|scope| {
        let writing = sender.clone();
        scope.spawn(move || enter(writer, Mode::Exclusive, "writer", &writing));
        writer_waits.wait_for(Event::Contended, 1);
        let attempt = attempt_in(writer, "a", Mode::Shared);
        assert!(attempt.is_none(), "a thread of the process waits to write");
        // The provider calls `contended` before it queues in the store.
        rig.until("a reader is held back", || {
            is_busy_in(&late, "a", Mode::Shared)
        });
        let waits = late_waits.count(Event::Contended) + 1;
        scope.spawn(|| enter(&late, Mode::Shared, "late reader", &sender));
        late_waits.wait_for(Event::Contended, waits);
        let [first, second] = readers;
        drop(first);
        assert!(second.is_held());
        assert!(entries.try_recv().is_err(), "a reader still has it");
        let token = second.token();
        drop(second);
        let entry = next(rig, &entries);
        let is_writer = entry.label == "writer";
        assert!(entry.guard.token() > token);
        let token = entry.guard.token();
        drop(entry);
        let entry = next(rig, &entries);
        assert!(entry.guard.token() > token);
        is_writer
    });
    rig.nothing_left();
    in_order
}

/// No reader ends before all of them have the name.
pub(super) fn readers_behind_a_writer_enter_together(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    let writing = take(&rig.keeper(), "a");
    let readers: Vec<_> = (0..5).map(|_| rig.recorded_keeper()).collect();
    let (sender, entries) = channel();
    thread::scope(|scope| {
        for (keeper, recorder) in &readers {
            for count in 1..=2 {
                let sender = sender.clone();
                scope.spawn(move || enter(keeper, Mode::Shared, "reader", &sender));
                recorder.wait_for(Event::Contended, count);
            }
        }
        drop(writing);
        let entered: Vec<_> = (0..10).map(|_| next(rig, &entries)).collect();
        assert!(entered.iter().all(|entry| entry.guard.is_held()));
    });
    rig.nothing_left();
    Ok(())
}

/// How the wait of a writer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    TimedOut,
    Cancelled,
}

/// A writer holds a later reader back, and its wait ends while an earlier reader has the name.
pub(super) fn ended_wait_of_a_writer_lets_readers_in(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    for end in [End::TimedOut, End::Cancelled] {
        let reading = take_shared(&rig.keeper(), "a");
        let ((writer, writer_waits), (late, late_waits)) =
            (rig.recorded_keeper(), rig.recorded_keeper());
        let (late, cancel) = (&late, CancelToken::new());
        // Longer than the case, since a store may grant a name at the end of a wait.
        let long = rig.timeout() * 2;
        let wait = match end {
            End::TimedOut => Duration::from_secs(3),
            End::Cancelled => long,
        };
        let write = in_mode(Mode::Exclusive).cancel(&cancel).wait(wait);
        let read = in_mode(Mode::Shared).wait(long);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| writer.acquire("a", &write).map(|it| it.is_some()));
            writer_waits.wait_for(Event::Contended, 1);
            if end == End::Cancelled {
                rig.until("a reader is held back", || {
                    is_busy_in(late, "a", Mode::Shared)
                });
            }
            let waits = late_waits.count(Event::Contended) + 1;
            let entering = scope.spawn(move || granted(late, "a", &read));
            if end == End::Cancelled {
                late_waits.wait_for(Event::Contended, waits);
                cancel.cancel();
            }
            let written = waiting.join().expect("the thread does not panic");
            assert!(
                !matches!(written, Ok(true)),
                "it is granted beside a reader"
            );
            // It has to be granted while the first one still has it.
            rig.until("the late reader is granted", || entering.is_finished());
            drop(entering.join().expect("the thread does not panic"));
        });
        assert!(reading.is_held());
        drop(reading);
        rig.nothing_left();
    }
    Ok(())
}

pub(super) fn killed_writer_lets_readers_in(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    let mut process = rig.process(rig.renewed(60_000))?;
    let reading = take_shared(&rig.keeper(), "a");
    process.wait_for("a");
    process.kill();
    drop(take_shared(&rig.keeper(), "a"));
    assert!(reading.is_held());
    drop(reading);
    rig.nothing_left();
    Ok(())
}

/// The stopped writer is granted the name after it resumes.
pub(super) fn stopped_writer_lets_readers_in(rig: &Rig<'_>) -> Outcome {
    rig.needs_mode(Mode::Shared)?;
    let mut process = rig.process(rig.renewed(5_000))?;
    let reading = take_shared(&rig.keeper(), "a");
    process.wait_for("a");
    rig.stop(&process);
    drop(reading);
    let token = take_shared(&rig.keeper(), "a").token().get();
    process.resume();
    assert!(process.expect_token() > token);
    process.release();
    rig.nothing_left();
    Ok(())
}
