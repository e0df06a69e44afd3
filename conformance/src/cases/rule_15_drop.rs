//! Rule 15: a drop does not wait for a store that does not answer, and its release is not lost.

use std::thread;

use lockkeeper_core::WaitOutcome;

use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, take, take_with};
use crate::tap::Fault;

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

pub(super) fn drop_without_a_reply_keeps_the_name_until_it_is_finished(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.observer(recorder.clone()));
    let guard = take(&keeper, "a");
    tap.set(Fault::HoldsReleases);
    drop(guard);
    thread::scope(|scope| {
        let next = scope.spawn(|| drop(take(&keeper, "a")));
        rig.until("a thread of the keeper goes on", || {
            tap.releases().len() > 1
        });
        assert_eq!(recorder.count(Event::Released), 0, "it is not finished");
        assert_eq!(tap.owners().len(), 1, "the name was requested before");
        tap.set(Fault::None);
        next.join().expect("the lock is granted");
    });
    recorder.wait_for(Event::Released, 2);
    rig.nothing_left();
    Ok(())
}

pub(super) fn drop_of_a_lost_guard_leaves_the_store_to_the_keeper(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.observer(recorder.clone()));
    let guard = take_with(&keeper, "a", rig.fixed(200));
    assert_eq!(guard.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);
    drop(guard);
    recorder.wait_for(Event::Released, 1);
    let own = thread::current().id();
    assert!(tap.releases().iter().all(|asking| *asking != own));
    rig.nothing_left();
    Ok(())
}
