//! The engine over a store that does what the test says: renewal, loss, hand-over and errors, at
//! exact times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod answers;
mod batched_attempts;
mod bounds;
mod close;
mod confirm;
mod dropped;
mod events;
mod freed;
mod group;
mod lock_all;
mod loss;
mod max_hold;
mod modes;
mod outage;
mod owed;
mod reentrant;
mod released;
mod renewal;
mod renewal_ahead;
mod reports;
mod retry;
mod schedule;
mod scripted_store;
mod set_refusals;
mod settings;
mod shared_loss;
mod steps;
mod tickets;
mod verifiers;
mod verify;
mod wait_queue;
