//! Real Redis and Valkey servers that crash, lose their data, refuse or stall, and a network that loses
//! messages. After each fault: exclusion, an answer for every waiter, lost guards, and nothing left on
//! the server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod cases;
#[cfg(unix)]
#[path = "../faults/mod.rs"]
mod faults;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    cases::main()
}

#[cfg(not(unix))]
fn main() {}
