//! The engine over a provider that does what the test says: renewal, loss, hand-over and errors,
//! at exact times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod lease;
mod line;
mod reentrant;
mod retry;
mod script;
