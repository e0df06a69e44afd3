//! `mysql:` and `mariadb:`: how to get there, the state beside the locks, and what the server
//! counts.

mod client;
mod stats;
mod tables;

pub(crate) use client::{Door, Noting};
pub(crate) use stats::Stats;
pub(crate) use tables::{Rows, Tables, from_pool};
