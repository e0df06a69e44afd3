//! Locks cost nothing when they are no longer held.

use std::path::Path;

use crate::ear::Event;
use crate::rig::{Outcome, Rig, Skip, is_busy, take};

/// Threads of a keeper that start when they are needed; see `LockKeeper`.
const KEEPERS_THREADS: usize = 5;

pub(super) fn nothing_stays_in_the_store(rig: &Rig<'_>) -> Outcome {
    rig.needs_leftovers()?;
    let (keeper, (other, ear)) = (rig.keeper(), rig.heard_keeper());
    for round in 0..100 {
        let name = format!("name {round}");
        let held = take(&keeper, &name);
        assert!(is_busy(&other, &name));
        if round % 10 == 0 {
            let waits = ear.count(Event::Contended) + 1;
            std::thread::scope(|scope| {
                scope.spawn(|| drop(take(&other, &name)));
                ear.wait_for(Event::Contended, waits);
                drop(held);
            });
        }
    }
    rig.nothing_left();
    Ok(())
}

/// In a process apart, so that the other cases of this program do not count.
pub(super) fn ten_thousand_locks_cost_nothing(rig: &Rig<'_>) -> Outcome {
    if !Path::new("/proc/self/task").exists() {
        return Err(Skip(
            "this system has no /proc to count threads in".to_owned(),
        ));
    }
    let mut process = rig.process_apart();
    process.say("spend 10000");
    let report = process.expect("spent");
    let numbers: Vec<usize> = report
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [idle, before, after, end, files_before, files_after, rows] = numbers[..] else {
        panic!("no report: {report:?}");
    };
    assert!(after <= before + KEEPERS_THREADS, "threads stay: {report}");
    assert!(end <= idle, "threads outlive their keeper: {report}");
    assert!(
        files_after <= files_before + KEEPERS_THREADS,
        "descriptors stay: {report}"
    );
    assert_eq!(rows, 0, "something stays in the store: {report}");
    process.end();
    Ok(())
}
