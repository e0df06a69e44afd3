//! Rule 8: threads of one process wait in a queue, and a lease is handed over within bounds.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{LockKeeper, Wait};

use super::admin::find;
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, take};

/// A limit that no hand-over reaches.
const UNLIMITED: Duration = Duration::from_secs(600);

/// Returns how often the lease of this token was handed over: the low 7 bits.
fn handovers(token: u64) -> u64 {
    token & 0x7f
}

/// Serves a holder and 11 waiters of one keeper, and a waiter of a second keeper. Returns the keepers
/// in the order in which they were served, with their tokens.
fn serve_two_keepers(rig: &Rig<'_>) -> Vec<(&'static str, u64)> {
    let served = Mutex::new(Vec::new());
    let recorder = rig.recorder();
    let builder = rig.builder().handover_max(3).handover_time(UNLIMITED);
    let keeper = build(builder.observer(recorder.clone()));
    let (second, second_recorder) = rig.recorded_keeper();
    let first = take(&keeper, "a");
    thread::scope(|scope| {
        let served = &served;
        let serve = |keeper: &LockKeeper, label| {
            let guard = take(keeper, "a");
            served
                .lock()
                .expect("the thread does not panic")
                .push((label, guard.token().get()));
        };
        let (keeper, second) = (&keeper, &second);
        scope.spawn(move || serve(second, "second"));
        second_recorder.wait_for(Event::Contended, 1);
        for _ in 0..11 {
            scope.spawn(move || serve(keeper, "first"));
        }
        recorder.wait_for(Event::Contended, 11);
        // A store that counts its waiters serves the second keeper from then on.
        if keeper.admin().is_some() {
            rig.until("the second keeper waits in the store", || {
                find(rig, keeper, "a").is_some_and(|held| held.waiting != Some(0))
            });
        }
        drop(first);
    });
    rig.nothing_left();
    served.into_inner().expect("the thread does not panic")
}

/// The second keeper is granted the name when the first has used up its hand-overs. On a busy machine
/// the second keeper may sometimes respond too late and be overtaken.
pub(super) fn handovers_are_bounded_by_count(rig: &Rig<'_>) -> Outcome {
    const REQUIRED: u32 = 2;
    const ROUNDS: u32 = 20;
    let mut in_time = 0;
    for _ in 0..ROUNDS {
        let served = serve_two_keepers(rig);
        let most = served.iter().map(|(_, token)| handovers(*token)).max();
        assert!(most <= Some(3), "handed over {most:?} times; 3 are allowed");
        let tokens: Vec<_> = served.iter().map(|(_, token)| *token).collect();
        assert!(
            tokens.is_sorted_by(|a, b| a < b),
            "the tokens do not grow: {tokens:?}"
        );
        in_time += u32::from(served.iter().position(|(label, _)| *label == "second") == Some(3));
        if in_time == REQUIRED {
            return Ok(());
        }
    }
    panic!("the second keeper was served in time in {in_time} of {ROUNDS} rounds");
}

pub(super) fn hundred_threads_are_one_waiter_in_the_store(rig: &Rig<'_>) -> Outcome {
    let held = take(&rig.keeper(), "a");
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.observer(recorder.clone()).wait(Wait::Forever));
    // A store that is made of several has a connection to each.
    let opened = keeper.usage().map_or(1, |usage| usage.connections.max(1));
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| drop(take(&keeper, "a")));
        }
        recorder.wait_for(Event::Contended, 100);
        assert_eq!(tap.requests(), 1, "one thread at a time sends requests");
        if let Some(usage) = keeper.usage() {
            // One waits, and on a store whose sessions are connections the lease that it waits for has one, too.
            assert!(
                usage.connections <= (2 * opened).max(3),
                "100 waiters have {usage:?}"
            );
        }
        drop(held);
    });
    rig.nothing_left();
    Ok(())
}
