//! Readers, writers and permits in the modelled keeper.

use shuttle::sync::Arc;

use crate::mode::Mode;
use crate::waiter::WaitKind;
use crate::world::{Drops, Outcome, World};
use crate::{Thread, assert_outcomes, check_worlds, settled, spawn};

const PERMIT: Mode = Mode::Permit { limit: 2 };

fn lock_in(world: &Arc<World>, mode: Mode, thread: usize) -> Thread {
    spawn(world, move |world| {
        world.lock_in(mode, thread, WaitKind::ThroughOutages)
    })
}

/// Runs every schedule of a model that has few.
fn check_all(max_handovers: u32, model: fn(&Arc<World>)) {
    shuttle::check_dfs(settled(max_handovers, Drops::Wait, model), None);
}

/// The world checks that no writer holds beside another guard.
#[test]
fn readers_and_writers_all_get_it() {
    check_worlds(&[0, 1, 9], |world| {
        let modes = [Mode::Shared, Mode::Exclusive, Mode::Shared];
        let threads = modes.into_iter().enumerate();
        let threads = threads.map(|(thread, mode)| lock_in(world, mode, thread));
        assert_outcomes(threads.collect(), &[Outcome::Held]);
    });
}

#[test]
fn readers_share_the_lease_of_the_first() {
    check_all(9, |world| {
        let lease = world.held_in(Mode::Shared);
        let reader = lock_in(world, Mode::Shared, 1);
        // The lease lives on, so the reader need not wait for it.
        assert_outcomes(vec![reader], &[Outcome::Held]);
        world.finish(&lease, 0);
    });
}

#[test]
fn reader_behind_a_writer_waits_for_it() {
    check_worlds(&[0, 9], |world| {
        let lease = world.held_in(Mode::Shared);
        // The writer asks the store while this process reads.
        world.assert_head();
        let reader = world.queued_in(Mode::Shared);
        let reader = spawn(world, move |world| world.wait(1, &reader));
        let writer = spawn(world, |world| world.acquire_as_head(0, Mode::Exclusive));
        world.finish(&lease, 0);
        assert_outcomes(vec![reader, writer], &[Outcome::Held]);
        assert_eq!(*world.grants.lock().unwrap(), [0, 1]);
    });
}

#[test]
fn readers_go_on_when_the_writer_before_them_gives_up() {
    check_worlds(&[9], |world| {
        let lease = world.held();
        let writer = world.queued();
        let reader = world.queued_in(Mode::Shared);
        let reader = spawn(world, move |world| world.wait(1, &reader));
        let writer = spawn(world, move |world| world.give_up(0, &writer));
        world.finish(&lease, 0);
        assert_outcomes(vec![reader], &[Outcome::Held]);
        assert_outcomes(vec![writer], &[Outcome::Held, Outcome::Busy]);
    });
}

#[test]
fn readers_go_on_when_the_writer_that_asks_is_refused() {
    check_worlds(&[9], |world| {
        let lease = world.held_in(Mode::Shared);
        world.assert_head();
        let reader = world.queued_in(Mode::Shared);
        let reader = spawn(world, move |world| world.wait(1, &reader));
        world.queue.pass(crate::world::KEY, None);
        // The first reader still reads.
        assert_outcomes(vec![reader], &[Outcome::Held]);
        world.finish(&lease, 0);
    });
}

#[test]
fn single_attempts_end_with_the_truth_in_every_mode() {
    check_worlds(&[9], |world| {
        let attempt = |(thread, mode)| {
            spawn(world, move |world| {
                world.lock_in(mode, thread, WaitKind::SingleAttempt)
            })
        };
        let modes = [Mode::Shared, Mode::Exclusive, Mode::Shared];
        let threads = modes.into_iter().enumerate().map(attempt).collect();
        assert_outcomes(threads, &[Outcome::Held, Outcome::Busy]);
    });
}

/// The world checks that no more than the limit are held.
#[test]
fn permits_are_held_beside_each_other_up_to_the_limit() {
    check_worlds(&[0, 1, 9], |world| {
        let threads = (0..3).map(|thread| lock_in(world, PERMIT, thread));
        assert_outcomes(threads.collect(), &[Outcome::Held]);
    });
}

#[test]
fn permit_does_not_wait_for_another_one_below_the_limit() {
    check_all(0, |world| {
        let lease = world.held_in(PERMIT);
        assert_outcomes(vec![lock_in(world, PERMIT, 1)], &[Outcome::Held]);
        world.finish(&lease, 0);
    });
}

#[test]
fn permit_of_another_limit_is_refused_while_permits_are_held() {
    check_all(9, |world| {
        let lease = world.held_in(PERMIT);
        let other = Mode::Permit { limit: 3 };
        assert_outcomes(vec![lock_in(world, other, 1)], &[Outcome::Mismatch]);
        world.finish(&lease, 0);
    });
}

#[test]
fn lock_and_permits_of_a_name_have_nothing_to_do_with_each_other() {
    check_all(9, |world| {
        let (lock, permit) = (world.held(), world.held_in(PERMIT));
        world.finish(&lock, 0);
        world.finish(&permit, 0);
    });
}
