//! Rules 1 and 17: a name has one exclusive holder, or readers, or as many permits as its limit allows.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{LockKeeper, Mode};

use crate::history::{History, hold_by_threads};
use crate::modes::take_in;
use crate::rig::{Outcome, Rig, SIBLING_ROUNDS, build};

/// Threads that hold a name, with these modes in turn.
struct Crowd {
    /// A word, as in the command to another process.
    name: &'static str,
    modes: &'static [Mode],
}

const CROWDS: [Crowd; 3] = [
    Crowd {
        name: "lock",
        modes: &[Mode::Exclusive],
    },
    // Mostly readers.
    Crowd {
        name: "readers",
        modes: &[
            Mode::Shared,
            Mode::Shared,
            Mode::Exclusive,
            Mode::Shared,
            Mode::Shared,
        ],
    },
    Crowd {
        name: "permits",
        modes: &[Mode::Permit { limit: 5 }],
    },
];

/// Returns the crowds for the modes that the store supports.
fn crowds(rig: &Rig<'_>) -> Vec<&'static Crowd> {
    let has_modes = |crowd: &&Crowd| crowd.modes.iter().all(|mode| rig.has_mode(*mode));
    CROWDS.iter().filter(has_modes).collect()
}

/// Holds the names of all crowds at the same time, on threads of each keeper, and checks the histories.
fn hold_by_keepers(rig: &Rig<'_>, keepers: &[LockKeeper]) -> Outcome {
    const THREADS: usize = 20;
    const ROUNDS: usize = 3;
    rig.all_at_once(crowds(rig), |crowd| {
        let history = History::new();
        let count = (THREADS, ROUNDS);
        let held = hold_by_threads(keepers, crowd.name, crowd.modes, count, history.path());
        assert_eq!(held, Ok(()));
        history.check(keepers.len() * THREADS * ROUNDS, None);
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn threads_of_one_keeper(rig: &Rig<'_>) -> Outcome {
    hold_by_keepers(rig, &[rig.keeper()])
}

pub(super) fn threads_of_two_keepers(rig: &Rig<'_>) -> Outcome {
    hold_by_keepers(rig, &[rig.keeper(), rig.keeper()])
}

pub(super) fn two_keepers_of_one_provider(rig: &Rig<'_>) -> Outcome {
    let provider = rig.provider();
    let keeper = || build(rig.builder_on(provider.clone()));
    hold_by_keepers(rig, &[keeper(), keeper()])
}

/// The number of threads of each process that hold a name.
const THREADS: usize = 25;

/// One process is killed and another one stopped for a while in the middle of it.
pub(super) fn four_processes_with_faults(rig: &Rig<'_>) -> Outcome {
    rig.all_at_once(crowds(rig), |crowd| hold_with_faults(rig, crowd))?;
    rig.nothing_left();
    Ok(())
}

fn hold_with_faults(rig: &Rig<'_>, crowd: &Crowd) -> Outcome {
    const ROUNDS: usize = 3;
    const STOP: Duration = Duration::from_millis(50);
    let history = History::new();
    let mut killed = rig.process(rig.renewed(1_000))?;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(rig.process(rig.renewed(60_000))?);
    }
    for process in others.iter_mut().chain([&mut killed]) {
        process.hold(crowd.name, crowd.modes, (THREADS, ROUNDS), &history);
    }
    rig.until("the processes hold the name", || history.events() > THREADS);
    others[0].stop();
    killed.kill();
    thread::park_timeout(STOP);
    others[0].resume();
    for process in &others {
        process.expect("ended");
    }
    history.check(others.len() * THREADS * ROUNDS, Some(killed.pid()));
    // A store may keep an expired lease until the name is acquired again.
    let keeper = rig.keeper();
    let all = match crowd.modes[0] {
        permit @ Mode::Permit { limit } => vec![permit; limit as usize],
        _ => vec![Mode::Exclusive],
    };
    let all = all
        .into_iter()
        .map(|mode| take_in(&keeper, crowd.name, mode));
    drop(all.collect::<Vec<_>>());
    Ok(())
}

/// A process that has acquired a lock forks two siblings. A store recognises a repeated request by its
/// owner. It must not confuse the siblings, although both have a copy of the same memory.
pub(super) fn forked_siblings(rig: &Rig<'_>) -> Outcome {
    let process = rig.forking_process()?;
    let siblings = [process.expect("granted"), process.expect("granted")];
    let mut granted: Vec<usize> = siblings
        .iter()
        .flat_map(|rounds| rounds.split_whitespace())
        .map(|round| round.parse().expect("a round is a number"))
        .collect();
    granted.sort_unstable();
    // Each name is granted to one sibling, and to only one.
    assert_eq!(granted, Vec::from_iter(0..SIBLING_ROUNDS), "{siblings:?}");
    process.close();
    rig.nothing_left();
    Ok(())
}
