//! Real MySQL and MariaDB servers that crash, stall or end sessions, and a network that loses messages.
//! After each fault: exclusion, an answer for every waiter, lost guards, and nothing left on the server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod cases;
#[cfg(unix)]
#[path = "../faults/mod.rs"]
mod faults;
#[cfg(unix)]
#[path = "../faults/session_server.rs"]
mod session_server;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    cases::main()
}

#[cfg(not(unix))]
fn main() {}
