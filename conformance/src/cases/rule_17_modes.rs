//! Rule 17: a lease in any mode waits, is renewed, is lost and ends as an exclusive one does.

use std::thread;

use lockkeeper_core::{
    CancelToken, Capability, ErrorKind, LeasePolicy, LockGuard, MAX_PERMITS, Mode, Released,
    WaitOutcome,
};

use super::rule_02_wait::deadlines;
use super::rule_09_between_processes::{
    pass_between_keepers, pass_killed_waiter, pass_stopped_waiter, pass_woken_waiter,
};
use crate::modes::{granted, in_mode, is_busy_in, stays_busy, take_in};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, Skip, build};

/// A store without the capabilities passes this case, and the others of this rule are ignored.
pub(super) fn modes_that_the_store_lacks_are_refused(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    let capabilities = keeper.capabilities();
    let refused = |limit: u32, kind: ErrorKind| {
        let mode = Mode::Permit { limit };
        let acquired = keeper.acquire("a", &in_mode(mode)).map(drop);
        for result in [acquired, keeper.semaphore("a", limit).map(drop)] {
            let error = result.expect_err("the limit is out of bounds");
            assert_eq!(error.kind(), kind, "{error:?}");
        }
    };
    refused(0, ErrorKind::InvalidLimit);
    refused(MAX_PERMITS + 1, ErrorKind::InvalidLimit);
    if capabilities.max_permits() < MAX_PERMITS {
        refused(capabilities.max_permits() + 1, ErrorKind::Unsupported);
    }
    for mode in [Mode::Shared, Mode::Permit { limit: 2 }] {
        if !rig.has_mode(mode) {
            rig.needs_mode(mode)
                .expect_err("the store does not have it");
        }
    }
    assert!(tap.owners().is_empty(), "a request reached the store");
    if capabilities.has(Capability::Permits) {
        drop(take_in(
            &keeper,
            "a",
            Mode::Permit {
                limit: capabilities.max_permits(),
            },
        ));
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn expired_lease_is_lost_before_the_next_grant(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let (holder, next) = (rig.keeper(), rig.keeper());
        let first = granted(&holder, &name, &in_mode(pair.held).lease(rig.fixed(400)));
        let second = take_in(&next, &name, pair.rival);
        assert!(
            !first.is_held(),
            "{pair:?}: {second:?} was granted beside it"
        );
        assert!(second.token() > first.token(), "{pair:?}");
        let released = first.release().expect("the store replies");
        assert_eq!(released, Released::AlreadyLost, "{pair:?}");
        let is_busy = is_busy_in(&holder, &name, pair.held);
        assert!(is_busy, "{pair:?}: the late release freed the next lease");
        let released = second.release().expect("the store replies");
        assert_eq!(released, Released::Done, "{pair:?}");
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn lease_is_renewed_beyond_its_ttl(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(5_000);
    rig.each_pair(|pair| {
        let name = pair.name();
        let held = take_in(&rig.keeper_with(lease), &name, pair.held);
        stays_busy(&rig.keeper(), &name, pair.rival, lease.ttl());
        assert!(held.is_held(), "{pair:?}");
        let released = held.release().expect("the store replies");
        assert_eq!(released, Released::Done, "{pair:?}");
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn killed_holder_is_replaced(rig: &Rig<'_>) -> Outcome {
    replace_killed_holder(rig, rig.renewed(4_000))
}

/// The ttl is longer than this case waits.
pub(super) fn dead_owner_is_replaced_at_once(rig: &Rig<'_>) -> Outcome {
    let capability = Capability::DeadOwnerTakeOver;
    if !rig.provider().capabilities().has(capability) {
        return Err(Skip(format!("the store does not declare {capability}")));
    }
    replace_killed_holder(rig, rig.renewed(3_600_000))
}

/// A waiter waits for one name when the holder is killed, and an attempt at another name comes later.
fn replace_killed_holder(rig: &Rig<'_>, lease: LeasePolicy) -> Outcome {
    rig.each_pair(|pair| {
        let names = ["waited", "idle"].map(|prefix| format!("{prefix}-{}", pair.name()));
        let [mut process, mut idle] = [rig.process(lease)?, rig.process(lease)?];
        let token = process.acquire_in(&names[0], pair.held);
        let idle_token = idle.acquire_in(&names[1], pair.held);
        let (waiter, recorder) = rig.recorded_keeper();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take_in(&waiter, &names[0], pair.rival));
            recorder.wait_for(Event::Contended, 1);
            process.kill();
            idle.kill();
            let later = take_in(&rig.keeper(), &names[1], pair.rival);
            assert!(later.token().get() > idle_token, "{pair:?}");
            let next = waiting.join().expect("the waiter is granted the name");
            assert!(next.token().get() > token, "{pair:?}");
        });
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

#[cfg(unix)]
pub(super) fn stopped_holder_is_lost_when_it_resumes(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let mut process = rig.process(rig.renewed(500))?;
        process.acquire_in(&name, pair.held);
        process.stop();
        let next = take_in(&rig.keeper(), &name, pair.rival);
        process.resume();
        process.send("is_held");
        assert_eq!(process.next_line(), "false", "{pair:?}");
        process.send("release");
        assert_eq!(process.next_line(), "AlreadyLost", "{pair:?}");
        assert!(next.is_held());
        let is_busy = is_busy_in(&rig.keeper(), &name, pair.held);
        assert!(is_busy, "{pair:?}: the late release freed the next lease");
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn stopped_holder_is_lost_when_it_resumes(_: &Rig<'_>) -> Outcome {
    Err(Skip("this system has no SIGSTOP".to_owned()))
}

pub(super) fn waits_end_at_their_deadlines(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let keeper = rig.keeper();
        let held = take_in(&keeper, &name, pair.held);
        // In the store, and in the queue of the process.
        deadlines(&rig.keeper(), &name, pair.rival);
        deadlines(&keeper, &name, pair.rival);
        assert!(held.is_held());
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn release_wakes_the_waiter(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        pass_between_keepers(rig, &pair.name(), [pair.held, pair.rival]);
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn woken_waiter_is_served_before_the_releaser(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        pass_woken_waiter(rig, &pair.name(), [pair.held, pair.rival]);
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

/// The waiter of a second keeper waits behind one that is cancelled in the store.
pub(super) fn cancelled_waiter_passes_its_turn_on(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let ((first, first_waits), (second, second_waits)) =
            (rig.recorded_keeper(), rig.recorded_keeper());
        let held = take_in(&rig.keeper(), &name, pair.held);
        let cancel = CancelToken::new();
        let options = in_mode(pair.rival).wait_forever().cancel(&cancel);
        thread::scope(|scope| {
            let cancelled = scope.spawn(|| first.acquire(&name, &options));
            first_waits.wait_for(Event::Contended, 1);
            let behind = scope.spawn(|| drop(take_in(&second, &name, pair.rival)));
            second_waits.wait_for(Event::Contended, 1);
            cancel.cancel();
            // A join would hang if the cancellation were ignored.
            rig.until("the wait has ended", || cancelled.is_finished());
            let error = cancelled.join().expect("the thread does not panic");
            let error = error.expect_err("the acquisition is cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{pair:?}: {error:?}");
            assert!(held.is_held());
            drop(held);
            behind.join().expect("the next waiter is granted the name");
        });
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn killed_waiter_does_not_block_the_next(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| pass_killed_waiter(rig, &pair.name(), [pair.held, pair.rival]))?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn stopped_waiter_does_not_block_the_next(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| pass_stopped_waiter(rig, &pair.name(), [pair.held, pair.rival]))?;
    rig.nothing_left();
    Ok(())
}

/// The connections of the store are closed while waiters wait in it.
pub(super) fn waits_outlast_an_outage(rig: &Rig<'_>) -> Outcome {
    let pairs = rig.pairs()?;
    let holder = rig.keeper();
    let waiters = pairs.into_iter().map(|pair| (pair, rig.recorded_keeper()));
    let waiters: Vec<_> = waiters.collect();
    let held = waiters
        .iter()
        .map(|(pair, _)| take_in(&holder, &pair.name(), pair.held));
    let held: Vec<_> = held.collect();
    thread::scope(|scope| {
        let waiting = waiters.iter().map(|(pair, (keeper, recorder))| {
            let waiting = scope.spawn(move || take_in(keeper, &pair.name(), pair.rival));
            recorder.wait_for(Event::Contended, 1);
            (pair, waiting)
        });
        let waiting: Vec<_> = waiting.collect();
        drop(rig.cut_off()?);
        for held in held {
            // The store may need another connection.
            rig.until("the holder reaches the store", || held.renew().is_ok());
        }
        for (pair, waiting) in waiting {
            let granted = waiting.join().expect("the waiter is granted the name");
            assert!(is_busy_in(&holder, &pair.name(), pair.held), "{pair:?}");
            granted.renew().expect("it is held");
        }
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn wiped_store_loses_every_lease(rig: &Rig<'_>) -> Outcome {
    let modes = [Mode::Shared, Mode::Permit { limit: 2 }];
    let modes: Vec<_> = modes
        .into_iter()
        .filter(|mode| rig.has_mode(*mode))
        .collect();
    if modes.is_empty() {
        return rig.needs_mode(Mode::Shared);
    }
    let keepers = [1, 2].map(|_| rig.keeper_with(rig.renewed(1_000)));
    let take_all = || {
        let of_keepers = |mode: &Mode| keepers.each_ref().map(|it| take_in(it, "a", *mode));
        modes.iter().flat_map(of_keepers).collect::<Vec<_>>()
    };
    let before = take_all();
    rig.wipe()?;
    for guard in &before {
        let outcome = guard.lost_signal().wait(rig.timeout());
        assert_eq!(outcome, WaitOutcome::Lost, "{guard:?}");
    }
    let after = take_all();
    let newest = before.iter().map(LockGuard::token).max();
    for guard in &after {
        assert!(Some(guard.token()) > newest, "{guard:?} after {before:?}");
    }
    drop((before, after));
    rig.nothing_left();
    Ok(())
}
