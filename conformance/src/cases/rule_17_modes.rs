//! Rule 17: each mode is refused or kept. The cases of the other rules run in every mode that the store has.

use std::thread;

use lockkeeper_core::{Capability, ErrorKind, LockGuard, MAX_PERMITS, Mode, WaitOutcome};

use crate::modes::{in_mode, is_busy_in, take_in};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build};

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
    assert!(tap.requests() == 0, "a request reached the store");
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

/// The connections of the store are closed while waiters wait in it.
pub(super) fn waits_outlast_an_outage(rig: &Rig<'_>) -> Outcome {
    let pairs = rig.pairs();
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
