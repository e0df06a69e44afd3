//! Programs that fork and use a SQLite store. Each test starts this program again, in a role that an
//! environment variable names.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

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
