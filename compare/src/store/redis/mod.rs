//! `redis:`, `rediss:` and `unix:`: how to get there, the state beside the locks, and what the server
//! counts.

mod client;
mod keys;
mod stats;

pub(crate) use client::{Door, Noting};
pub(crate) use keys::{Keys, Tally};
pub(crate) use stats::Stats;
