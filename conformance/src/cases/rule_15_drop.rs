//! Rule 15: a drop does not wait for a store that does not answer, and its release is not lost.

use std::thread;

use crate::recorder::Event;
use crate::rig::{Outcome, Rig, take};

pub(super) fn drop_in_an_outage_is_finished_after_it(rig: &Rig<'_>) -> Outcome {
    let (keeper, recorder) = rig.recorded_keeper();
    let (kept, late) = (take(&keeper, "kept"), take(&keeper, "late"));
    let guards: Vec<_> = (0..20).map(|n| take(&keeper, &format!("{n}"))).collect();
    let count = guards.len() + 1;
    thread::scope(|scope| {
        // The store goes away in the middle of these.
        let dropping = scope.spawn(move || drop(guards));
        recorder.wait_for(Event::Released, 1);
        let fault = rig.cut_off()?;
        let late = scope.spawn(move || drop(late));
        rig.until("the drops return during the outage", || {
            dropping.is_finished() && late.is_finished()
        });
        drop(fault);
        Ok(())
    })?;
    recorder.wait_for(Event::Released, count);
    // The store may need another connection.
    rig.until("the lock that is kept is renewed", || kept.renew().is_ok());
    drop(kept);
    // Long before the ttl, which would free the names as well.
    rig.nothing_left();
    let other = rig.keeper();
    for name in ["late", "kept", "0", "19"] {
        drop(take(&other, name));
    }
    Ok(())
}
