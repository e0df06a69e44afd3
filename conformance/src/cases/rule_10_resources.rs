//! Rule 10: a released lock leaves no resources behind.

use std::path::Path;

use crate::recorder::Event;
use crate::rig::{Outcome, Rig, Skip, is_busy, take};

/// The most threads of a keeper, however many parts the store has; see `LockKeeper`. Two would do: on a busy machine, a
/// call that takes some milliseconds brings in another one.
const KEEPER_THREADS: usize = 1 + 12 + 4;

pub(super) fn released_locks_leave_nothing_in_the_store(rig: &Rig<'_>) -> Outcome {
    rig.needs_leftovers()?;
    let (keeper, (other, recorder)) = (rig.keeper(), rig.recorded_keeper());
    for round in 0..40 {
        let name = format!("name {round}");
        let held = take(&keeper, &name);
        assert!(is_busy(&other, &name));
        if round % 10 == 0 {
            let waits = recorder.count(Event::Contended) + 1;
            std::thread::scope(|scope| {
                scope.spawn(|| drop(take(&other, &name)));
                recorder.wait_for(Event::Contended, waits);
                drop(held);
            });
        }
    }
    rig.nothing_left();
    Ok(())
}

/// Runs in another process, so that the threads and files of other cases do not count.
pub(super) fn hundreds_of_locks_leak_no_resources(rig: &Rig<'_>) -> Outcome {
    if !Path::new("/proc/self/task").exists() {
        return Err(Skip(
            "this system has no /proc to count threads in".to_owned(),
        ));
    }
    let mut process = rig.process_of_its_own();
    process.send("measure 400");
    let report = loop {
        let line = process.next_line();
        match line.strip_prefix("measured") {
            Some(report) => break report.to_owned(),
            None => assert_eq!(line, "measuring"),
        }
    };
    let numbers: Vec<usize> = report
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [idle, after, end, files_before, files_after, rows] = numbers[..] else {
        panic!("the report is incomplete: {report:?}");
    };
    assert!(after <= idle + KEEPER_THREADS, "threads leak: {report}");
    assert!(end <= idle, "threads outlive their keeper: {report}");
    assert!(
        files_after <= files_before + KEEPER_THREADS,
        "descriptors leak: {report}"
    );
    assert_eq!(rows, 0, "the store is not empty: {report}");
    process.end();
    rig.nothing_left();
    Ok(())
}
