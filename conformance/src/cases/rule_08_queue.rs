//! Threads of one process wait in a line, and a lease is handed along it, within bounds.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Capabilities, LockKeeper, Wait};

use crate::ear::{Ear, Event};
use crate::rig::{Outcome, Rig, build, take};

/// A time that no hand-over is bounded by.
const LONG: Duration = Duration::from_secs(600);

/// How often the lease of this token was handed over: its low 7 bits.
fn handed_over(token: u64) -> u64 {
    token & 0x7f
}

/// Has `count` threads stand in line one after the other behind a holder; the tokens by place.
fn stand_in_line(keeper: &LockKeeper, ear: &Ear, count: usize) -> Vec<u64> {
    let served = Mutex::new(Vec::new());
    let first = take(keeper, "a");
    thread::scope(|scope| {
        for place in 0..count {
            let served = &served;
            scope.spawn(move || {
                let guard = take(keeper, "a");
                served
                    .lock()
                    .expect("no panic")
                    .push((place, guard.token().get()));
            });
            ear.wait_for(Event::Contended, place + 1);
        }
        drop(first);
    });
    let served = served.into_inner().expect("no panic");
    let places: Vec<_> = served.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, Vec::from_iter(0..count), "first come, first served");
    served.into_iter().map(|(_, token)| token).collect()
}

pub(super) fn first_come_first_served_by_hand_over(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.observer(ear.clone()).handover_time(LONG));
    let tokens = stand_in_line(&keeper, &ear, 20);
    let turns: Vec<_> = tokens.into_iter().map(handed_over).collect();
    assert_eq!(turns, Vec::from_iter(1..=20));
    assert_eq!(tap.owners().len(), 1, "one lease served them all");
    rig.nothing_left();
    Ok(())
}

pub(super) fn first_come_first_served_through_the_store(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.observer(ear.clone()).handover_max(0));
    let tokens = stand_in_line(&keeper, &ear, 20);
    assert!(tokens.into_iter().all(|token| handed_over(token) == 0));
    assert_eq!(tap.owners().len(), 21, "each asked the store");
    rig.nothing_left();
    Ok(())
}

/// One holder and 11 waiters of one keeper, and a second keeper that waits in the store: who was
/// served, in order, with its token.
fn against_a_second_keeper(rig: &Rig<'_>) -> Vec<(&'static str, u64)> {
    let served = Mutex::new(Vec::new());
    let ear = rig.ear();
    let builder = rig.builder().handover_max(3).handover_time(LONG);
    let keeper = build(builder.observer(ear.clone()));
    let (second, second_ear) = rig.heard_keeper();
    let first = take(&keeper, "a");
    thread::scope(|scope| {
        let served = &served;
        let serve = |keeper: &LockKeeper, who| {
            let guard = take(keeper, "a");
            served
                .lock()
                .expect("no panic")
                .push((who, guard.token().get()));
        };
        let (keeper, second) = (&keeper, &second);
        scope.spawn(move || serve(second, "second"));
        second_ear.wait_for(Event::Contended, 1);
        for _ in 0..11 {
            scope.spawn(move || serve(keeper, "first"));
        }
        ear.wait_for(Event::Contended, 11);
        drop(first);
    });
    rig.nothing_left();
    served.into_inner().expect("no panic")
}

/// The second keeper gets the name as soon as the first has used up its hand-overs. On a busy
/// machine it may miss its turn, when it does not come within the store's grace; not as a rule.
pub(super) fn hand_overs_are_bounded_by_count(rig: &Rig<'_>) -> Outcome {
    const ENOUGH: u32 = 5;
    const ROUNDS: u32 = 20;
    let mut in_turn = 0;
    for _ in 0..ROUNDS {
        let served = against_a_second_keeper(rig);
        let most = served.iter().map(|(_, token)| handed_over(*token)).max();
        assert!(
            most <= Some(3),
            "handed over {most:?} times, and 3 were allowed"
        );
        let tokens: Vec<_> = served.iter().map(|(_, token)| *token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?} grow");
        in_turn += u32::from(served.iter().position(|(who, _)| *who == "second") == Some(3));
        if in_turn == ENOUGH {
            return Ok(());
        }
    }
    panic!("the second keeper got its turn in time in {in_turn} of {ROUNDS} rounds");
}

pub(super) fn hand_overs_are_bounded_by_time(rig: &Rig<'_>) -> Outcome {
    let ear = rig.ear();
    let builder = rig.builder().handover_time(Duration::ZERO);
    let keeper = build(builder.observer(ear.clone()));
    let tokens = stand_in_line(&keeper, &ear, 5);
    assert!(tokens.into_iter().all(|token| handed_over(token) == 0));
    Ok(())
}

pub(super) fn hundred_threads_are_one_waiter(rig: &Rig<'_>) -> Outcome {
    let held = take(&rig.keeper(), "a");
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.observer(ear.clone()).wait(Wait::Forever));
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| drop(take(&keeper, "a")));
        }
        ear.wait_for(Event::Contended, 100);
        assert_eq!(tap.owners().len(), 1, "one of them asks the store");
        if let Some(usage) = keeper.usage() {
            assert!(usage.connections <= 2, "100 waiters have {usage:?}");
        }
        drop(held);
    });
    assert_eq!(tap.overlaps(), 0, "one at a time asks the store");
    rig.nothing_left();
    Ok(())
}

pub(super) fn a_fixed_lease_is_never_handed_over(rig: &Rig<'_>) -> Outcome {
    let ear = rig.ear();
    let least = Capabilities::MIN_TTL.max(rig.ttl(60_000));
    let lease = lockkeeper_core::LeasePolicy::Fixed { ttl: least };
    let keeper = build(rig.builder().observer(ear.clone()).lease(lease));
    let tokens = stand_in_line(&keeper, &ear, 5);
    assert!(tokens.into_iter().all(|token| handed_over(token) == 0));
    Ok(())
}
