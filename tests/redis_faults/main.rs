//! Real Redis and Valkey servers that die, forget, refuse and dawdle, and a network that loses what
//! it carries. After each fault: no two holders, an answer for every waiter, losses told, and
//! nothing left behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod cases;
#[cfg(unix)]
#[path = "../rig/mod.rs"]
mod rig;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    cases::main()
}

#[cfg(not(unix))]
fn main() {}
