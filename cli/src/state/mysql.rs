//! `mysql:` and `mariadb:`: how to get there, the state beside the locks, and what the server
//! counts.

mod door;
mod stats;
mod tables;

pub(crate) use door::{Door, Noting};
pub(crate) use stats::Stats;
pub(crate) use tables::{Rows, Tables, from_pool};
