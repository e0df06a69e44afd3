//! Rule 17: operators see every lease of a name, and can take a single one away.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{HeldName, LeasePolicy, LockGuard, LockKeeper, Mode, Released};

use super::admin::{admin, deadline, find_all, needs_admin};
use crate::fixture::Loss;
use crate::modes::{granted, in_mode, take_in, take_permit};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, Skip, build, is_busy};

/// Lists the leases of the lock `a`, or of its permits.
fn rows(rig: &Rig<'_>, asker: &LockKeeper, mode: Mode) -> Vec<HeldName> {
    let rows = find_all(rig, asker, "a").into_iter();
    rows.filter(|row| row.mode.is_permit() == mode.is_permit())
        .collect()
}

/// Three keepers have a lease of one name each, in a mode that permits it, and one lease is taken away.
pub(super) fn forced_release_ends_one_lease_of_a_name(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let modes = [Mode::Shared, Mode::Permit { limit: 3 }];
    for mode in modes {
        rig.needs_mode(mode)?;
    }
    // Without notice of it, a loss shows at the next renewal, after a third of the ttl.
    let ttl = match rig.needs_notice_of(Loss::Unlocked) {
        Ok(()) => 3_600_000,
        Err(_) => 6_000,
    };
    rig.with_renewed_ttl(ttl, |ttl, _| {
        end_one_lease(rig, modes, LeasePolicy::Renewed { ttl });
        rig.nothing_left();
        Ok(())
    })
}

fn end_one_lease(rig: &Rig<'_>, modes: [Mode; 2], lease: LeasePolicy) {
    let asker = rig.keeper();
    // Two guards of a keeper have one lease, however long this machine takes for that.
    let builder = || rig.builder().handover_time(Duration::from_secs(600));
    let keepers = [(); 3].map(|()| build(builder().lease(lease)));
    let held = modes.map(|mode| keepers.each_ref().map(|keeper| take_in(keeper, "a", mode)));
    for (mode, mut guards) in modes.into_iter().zip(held.map(Vec::from)) {
        let rows = || rows(rig, &asker, mode);
        let seen = rows();
        let mut slots: Vec<_> = seen.iter().map(|row| row.slot).collect();
        slots.sort_unstable();
        match mode.is_permit() {
            true => assert_eq!(slots, [0, 1, 2].map(Some), "{seen:?}"),
            false => {
                assert_eq!(slots, [None; 3], "{seen:?}");
                assert!(seen.iter().all(|row| row.mode == mode), "{seen:?}");
                // The other guard of the first keeper has the same lease.
                guards.push(take_in(&keepers[0], "a", mode));
            }
        }
        for row in &seen {
            if let Some(token) = row.token() {
                let is_held = guards.iter().any(|guard| guard.token() == token);
                assert!(is_held, "{row:?} is not of {guards:?}");
            }
        }
        let force = || admin(&asker).force_release(&seen[1], deadline(rig));
        assert!(force().expect("the store replies"));
        assert!(!force().expect("the store replies"), "it is gone");
        assert!(!rows().contains(&seen[1]), "it is gone");
        rig.until("a guard is lost", || !guards.iter().all(LockGuard::is_held));
        let (kept, lost): (Vec<_>, Vec<_>) = guards.into_iter().partition(LockGuard::is_held);
        for guard in lost {
            let released = guard.release().expect("the store replies");
            assert_eq!(released, Released::AlreadyLost);
        }
        assert!(kept.len() >= 2, "only {kept:?} of four are held");
        for guard in &kept {
            guard.renew().expect("the other leases stay");
        }
        assert_eq!(rows().len(), 2, "the other leases stay: {:?}", rows());
        if mode.is_permit() {
            let freed = take_permit(&asker, "a", 3).slot();
            assert_eq!(Some(freed), seen[1].slot);
        } else {
            assert!(is_busy(&asker, "a"), "two readers have it");
        }
    }
}

pub(super) fn forced_release_wakes_a_waiter(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    rig.each_pair(|pair| {
        let name = pair.name();
        let held = granted(
            &rig.keeper(),
            &name,
            &in_mode(pair.held).lease(rig.fixed(60_000)),
        );
        let (waiter, recorder) = rig.recorded_keeper();
        let asker = rig.keeper();
        // Longer than the case, since a store may grant a name at the end of a wait.
        let long = in_mode(pair.rival).wait(rig.timeout() * 2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| granted(&waiter, &name, &long));
            recorder.wait_for(Event::Contended, 1);
            let seen = find_all(rig, &asker, &name);
            assert_eq!(seen.len(), 1, "{seen:?}");
            let forced = admin(&asker).force_release(&seen[0], deadline(rig));
            assert!(forced.expect("the store replies"), "{pair:?}");
            rig.until("the waiter is granted the name", || waiting.is_finished());
            let next = waiting.join().expect("the thread does not panic");
            assert!(next.token() > held.token(), "{pair:?}");
            let released = held.release().expect("the store replies");
            assert_eq!(released, Released::AlreadyLost, "{pair:?}");
            next.renew().expect("the late release frees nothing");
        });
        Ok(())
    })
}

/// Two keepers wait for the permits of a name, and one for its lock.
pub(super) fn waiters_for_lock_and_permits_are_counted_apart(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let permit = Mode::Permit { limit: 2 };
    for mode in [Mode::Shared, permit] {
        rig.needs_mode(mode)?;
    }
    let (holders, asker) = ([rig.keeper(), rig.keeper()], rig.keeper());
    let hold = |mode| holders.each_ref().map(|keeper| take_in(keeper, "a", mode));
    let held = [Mode::Shared, permit].map(hold);
    let counted = |mode| rows(rig, &asker, mode).into_iter().map(|row| row.waiting);
    if counted(permit).any(|waiting| waiting.is_none()) {
        return Err(Skip("the store does not count waiters".to_owned()));
    }
    let waiters = [Mode::Exclusive, permit, permit].map(|mode| (rig.keeper(), mode));
    thread::scope(|scope| {
        for (keeper, mode) in &waiters {
            scope.spawn(move || drop(take_in(keeper, "a", *mode)));
        }
        for (mode, count) in [(Mode::Shared, 1), (permit, 2)] {
            rig.until("the waiters are counted", || {
                counted(mode).eq([Some(count); 2])
            });
        }
        drop(held);
    });
    rig.nothing_left();
    Ok(())
}
