//! What the tests with faults look with, whatever the store.

mod contended;
mod waiting;
mod witness;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use contended::through_it_all;
pub(crate) use waiting::Waiting;
pub(crate) use witness::Witness;

/// Far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Who has no answer so long after its deadline, hangs.
pub(crate) const HANG: Duration = Duration::from_secs(5);

#[track_caller]
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until no thread of a keeper or of a backend runs any more.
pub(crate) fn threads_end() {
    until("the threads of all keepers have ended", || {
        let Ok(tasks) = fs::read_dir("/proc/self/task") else {
            return true;
        };
        let mut names = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        !names.any(|name| name.starts_with("lockkeeper"))
    });
}
