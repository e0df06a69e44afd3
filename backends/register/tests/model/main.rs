//! The function that decides, and the protocol around it, under a model checker: every order of the steps of several
//! processes, with replies that are lost, writes that arrive late, sessions that end, processes that die, sweeps and
//! `unlock`. The wall clocks of the processes differ and stand still.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../../src/decide.rs"]
mod decide;
#[path = "../../src/entry.rs"]
mod entry;
#[path = "../../src/key.rs"]
mod key;
#[path = "../../src/lease.rs"]
mod lease;
#[path = "../../src/store.rs"]
mod store;
mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use lockkeeper_core::Mode;

use world::{Bounds, World};

const PERMIT: Mode = Mode::Permit { limit: 2 };

/// Visits all worlds that can come of this one, and checks each.
fn check(modes: &[Mode], bounds: Bounds) {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(modes, bounds)];
    while let Some(mut world) = open.pop() {
        world.rename_versions();
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        if seen.insert(hasher.finish()) {
            world.check();
            open.extend(world.next());
        }
    }
    println!("{modes:?}: {} worlds", seen.len());
}

/// Checks two locks of one name, and the other modes with one fault less: they have more worlds.
fn check_all_modes(bounds: Bounds) {
    check(&[Mode::Exclusive; 2], bounds);
    let bounds = Bounds {
        faults: bounds.faults - 1,
        ..bounds
    };
    check(&[Mode::Shared, Mode::Exclusive], bounds);
    check(&[PERMIT; 2], bounds);
}

#[test]
fn lost_and_late_writes_do_no_harm() {
    check_all_modes(Bounds {
        faults: 2,
        sweeps: 1,
        ..Bounds::default()
    });
}

#[test]
fn ended_sessions_and_dead_processes_block_nobody() {
    check_all_modes(Bounds {
        faults: 1,
        deaths: 1,
        ends: 1,
        ..Bounds::default()
    });
}

#[test]
fn epochs_grow_over_sweeps() {
    let bounds = Bounds {
        sweeps: 2,
        rounds: 2,
        ..Bounds::default()
    };
    check(&[Mode::Exclusive; 2], bounds);
    check(&[Mode::Shared; 2], bounds);
}

#[test]
fn unlock_takes_one_lease() {
    let bounds = Bounds {
        faults: 1,
        unlocks: 1,
        sweeps: 1,
        ..Bounds::default()
    };
    check(&[Mode::Exclusive; 2], bounds);
    check(&[Mode::Shared; 2], bounds);
}

#[test]
fn three_processes_wait_in_order() {
    let bounds = Bounds::default();
    check(&[Mode::Exclusive; 3], bounds);
    check(&[Mode::Shared, Mode::Exclusive, Mode::Shared], bounds);
}
