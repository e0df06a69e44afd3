//! Rule 5: only the owner's release frees the name, and dropping a guard releases.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockkeeper_core::{ErrorKind, Released, WaitOutcome};

use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take, take_with};

pub(super) fn release_frees_the_name_at_once(rig: &Rig<'_>) -> Outcome {
    let (keeper, other) = (rig.keeper(), rig.keeper());
    for _ in 0..3 {
        let guard = take(&keeper, "a");
        assert!(is_busy(&other, "a"));
        assert_eq!(guard.release().expect("the store replies"), Released::Done);
        rig.nothing_left();
        let work = other.run_locked("a", |guard| {
            assert!(guard.is_held());
            assert!(is_busy(&keeper, "a"));
            42
        });
        let done = work.expect("the name is free");
        assert_eq!(done.held().expect("the lock was held throughout"), 42);
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn renewal_after_the_store_ended_the_lease(rig: &Rig<'_>) -> Outcome {
    let recorder = rig.recorder();
    let keeper = build(
        rig.builder()
            .lease(rig.renewed(6_000))
            .observer(recorder.clone()),
    );
    let guard = take(&keeper, "a");
    let (sender, called) = channel();
    guard.lost_signal().on_lost(move || {
        let _ = sender.send(());
    });
    rig.end_lease("a")?;
    let other = take(&rig.keeper(), "a");
    assert_eq!(guard.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);
    called
        .recv_timeout(rig.timeout())
        .expect("the loss callback runs");
    recorder.wait_for(Event::Lost, 1);
    assert_eq!(
        guard.release().expect("the store replies"),
        Released::AlreadyLost
    );
    assert!(other.is_held());
    assert!(
        is_busy(&rig.keeper(), "a"),
        "the late release freed the next lock"
    );

    // A manual renewal finds the loss at once.
    let guard = take_with(&keeper, "b", rig.fixed(60_000));
    rig.end_lease("b")?;
    let error = guard.renew().expect_err("the store has ended the lease");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert!(!guard.is_held());
    drop((guard, other));
    rig.nothing_left();
    Ok(())
}

pub(super) fn release_in_an_outage_is_bounded(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper_with(rig.renewed(1_000));
    let (released, dropped) = (take(&keeper, "released"), take(&keeper, "dropped"));
    let fault = rig.cut_off()?;
    let began = Instant::now();
    let answer = released.release();
    drop(dropped);
    let took = began.elapsed();
    match answer {
        // The lease expired first, on a busy machine.
        Ok(Released::AlreadyLost) => {}
        Ok(Released::Done) => panic!("an unreachable store cannot confirm a release"),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
    assert!(took < Duration::from_secs(20), "released for {took:?}");
    drop(fault);
    // The ttl frees both names.
    drop((
        take(&rig.keeper(), "released"),
        take(&rig.keeper(), "dropped"),
    ));
    rig.nothing_left();
    Ok(())
}
