//! At most one guard at a time says that it is held.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use lockkeeper_core::{LockGuard, LockKeeper};

use crate::child::parse;
use crate::rig::{Outcome, Rig, build, take};
use crate::scratch::Scratch;

/// A number that comes out right only where one thread at a time adds to it.
#[derive(Default)]
struct Unguarded {
    count: AtomicU64,
    last: AtomicU64,
}

impl Unguarded {
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

/// `threads` threads on each keeper, each adding `rounds`.
fn gather(keepers: &[LockKeeper], threads: u64, rounds: u64) {
    let number = Unguarded::default();
    thread::scope(|scope| {
        for keeper in keepers {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        number.add_one(&take(keeper, "number"));
                    }
                });
            }
        }
    });
    let expected = threads * rounds * keepers.len() as u64;
    assert_eq!(number.count.load(Ordering::SeqCst), expected);
}

pub(super) fn hundred_threads(rig: &Rig<'_>) -> Outcome {
    gather(&[rig.keeper()], 100, 10);
    rig.nothing_left();
    Ok(())
}

pub(super) fn two_keepers_of_one_process(rig: &Rig<'_>) -> Outcome {
    gather(&[rig.keeper(), rig.keeper()], 25, 10);
    rig.nothing_left();
    Ok(())
}

pub(super) fn two_keepers_of_one_provider(rig: &Rig<'_>) -> Outcome {
    let provider = rig.provider();
    let keeper = || build(rig.builder_on(provider.clone()));
    gather(&[keeper(), keeper()], 25, 10);
    rig.nothing_left();
    Ok(())
}

pub(super) fn four_processes(rig: &Rig<'_>) -> Outcome {
    let file = Scratch::new("0 0");
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(rig.process(rig.renewed(60_000))?);
    }
    for process in &mut processes {
        process.say(&format!("gather number 25 {}", file.path().display()));
    }
    for process in &processes {
        assert_eq!(process.expect("gathered"), "");
    }
    let text = std::fs::read_to_string(file.path()).expect("the file is there");
    let count = parse(&text).map(|(count, _)| count);
    assert_eq!(count, Some(100), "of 4 times 25, in {text:?}");
    rig.nothing_left();
    Ok(())
}

/// What a store recognises its own grant by must not fit anybody else's.
pub(super) fn every_request_has_an_owner_of_its_own(rig: &Rig<'_>) -> Outcome {
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
