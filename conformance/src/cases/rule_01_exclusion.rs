//! Rule 1: at most one guard of a name reports that it is held.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use lockkeeper_core::{LockGuard, LockKeeper, Mode};

use crate::rig::{Outcome, Rig, SIBLING_ROUNDS, build, take};

/// A counter whose increments are lost unless one thread at a time adds to it.
#[derive(Default)]
struct UnguardedCounter {
    count: AtomicU64,
    last: AtomicU64,
}

impl UnguardedCounter {
    fn add_one(&self, guard: &LockGuard) {
        let count = self.count.load(Ordering::SeqCst);
        let last = self.last.swap(guard.token().get(), Ordering::SeqCst);
        assert!(
            guard.token().get() > last,
            "the token {} comes after {last}",
            guard.token()
        );
        thread::yield_now();
        self.count.store(count + 1, Ordering::SeqCst);
    }
}

/// Adds to one counter from `threads` threads of each keeper, `rounds` times each.
fn increment(keepers: &[LockKeeper], threads: u64, rounds: u64) {
    let counter = UnguardedCounter::default();
    thread::scope(|scope| {
        for keeper in keepers {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        counter.add_one(&take(keeper, "number"));
                    }
                });
            }
        }
    });
    let expected = threads * rounds * keepers.len() as u64;
    assert_eq!(counter.count.load(Ordering::SeqCst), expected);
}

pub(super) fn hundred_threads_of_one_keeper(rig: &Rig<'_>) -> Outcome {
    increment(&[rig.keeper()], 100, 10);
    rig.nothing_left();
    Ok(())
}

pub(super) fn two_keepers_of_one_process(rig: &Rig<'_>) -> Outcome {
    increment(&[rig.keeper(), rig.keeper()], 25, 10);
    rig.nothing_left();
    Ok(())
}

pub(super) fn two_keepers_of_one_provider(rig: &Rig<'_>) -> Outcome {
    let provider = rig.provider();
    let keeper = || build(rig.builder_on(provider.clone()));
    increment(&[keeper(), keeper()], 25, 10);
    rig.nothing_left();
    Ok(())
}

pub(super) fn four_processes(rig: &Rig<'_>) -> Outcome {
    rig.four_processes("number", &[Mode::Exclusive])
}

/// A process that has acquired a lock forks two siblings. A store that recognises its own grant by the
/// owner must not take one sibling for the other, although both have a copy of the same memory.
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

/// Two requests with one owner would be one request to a store.
pub(super) fn owners_of_requests_are_unique(rig: &Rig<'_>) -> Outcome {
    let mut seen = HashSet::new();
    for _ in 0..2 {
        let (builder, tap) = rig.tapped();
        let keeper = build(builder);
        for _ in 0..3 {
            drop(take(&keeper, "a"));
        }
        for owner in tap.owners() {
            assert!(seen.insert(owner), "two requests came from {owner:?}");
        }
    }
    assert_eq!(seen.len(), 6);
    Ok(())
}
