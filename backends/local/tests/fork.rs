//! Programs that fork, on SQLite. Each is this program again, in a role that a variable names.

#![allow(clippy::unwrap_used, reason = "that is how a test fails")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
#[path = "fork/linux.rs"]
mod linux;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    return linux::main();
    #[cfg(not(target_os = "linux"))]
    {
        use libtest_mimic::{Arguments, Trial, run};
        let ignored = Trial::test("needs Linux's /proc", || Ok(())).with_ignored_flag(true);
        run(&Arguments::from_args(), vec![ignored]).exit_code()
    }
}
