//! Tokens while locks move through stores of all kinds, in every order: where they keep growing by
//! themselves, and where that needs `epoch_offset`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod moves;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    moves::main()
}

#[cfg(not(unix))]
fn main() {}
