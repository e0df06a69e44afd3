//! Rule 8: threads of one process wait in a queue. Core's own tests show the bounds of hand-overs, which no store decides.

use std::thread;

use lockkeeper_core::Wait;

use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, take};

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
