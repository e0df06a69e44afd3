//! The memory and threads of a process.

use std::fs;

/// Returns a number of a process from /proc, such as `Threads` or `VmRSS` (in KiB): of this process if
/// `pid` is `None`. Returns `None` on other systems.
pub(crate) fn status(pid: Option<u32>, name: &str) -> Option<f64> {
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim_start_matches(':').split_whitespace().next()?;
    number.parse().ok()
}

/// Returns the resident memory of a process in bytes: of this process if `pid` is `None`. Returns `None` on
/// systems other than Linux.
pub(crate) fn resident(pid: Option<u32>) -> Option<f64> {
    status(pid, "VmRSS").map(|kib| kib * 1024.0)
}
