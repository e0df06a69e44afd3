//! Compares ways of locking: the same scenarios run with each of them, on several stores.
//!
//! A *strategy* is a way of keeping a transaction whole: this library, the recipes of well-known
//! write-ups, and no lock at all as the control. A *scenario* lets many threads compete, and checks
//! afterwards whether the outcome is right. What a strategy costs its store is counted by the store.
//!
//! ```
//! use lockkeeper_compare::{Comparison, Scenario, Strategy, Verdict};
//!
//! # fn main() -> Result<(), lockkeeper_compare::Error> {
//! let report = Comparison::new()
//!     .url("memory:")
//!     .scenarios([Scenario::Gather])
//!     .strategies([Strategy::None, Strategy::Lockkeeper])
//!     .threads(20)
//!     .run()?;
//!
//! // Without a lock more threads get in than there are seats; with one, exactly as many.
//! assert_eq!(report.rows[0].verdict, Verdict::Wrong);
//! assert_eq!(report.rows[1].verdict, Verdict::Right);
//! assert!(report.is_as_expected());
//! println!("{}", report.to_text());
//! # Ok(())
//! # }
//! ```
//!
//! # The holder of the scenarios `crash` and `limit`
//!
//! `crash` kills a process that holds a lock, and `limit` one that holds two permits. A library cannot
//! know how to start such a process, so the caller names a program that calls [`holder::main`]; see
//! [`Comparison::holder`]. Without one, they run on `memory:` alone, where the holder is a thread.

mod cancel;
mod comparison;
mod error;
pub mod holder;
mod meter;
mod named;
mod random;
mod report;
mod run;
mod scenario;
mod servers;
mod settings;
mod stopwatch;
mod store;
mod strategy;
mod threads;
mod verdict;
mod waits;

pub use comparison::{Comparison, Event};
pub use error::Error;
pub use report::html;
pub use report::row::{LeftOut, Report, Row};
pub use scenario::Scenario;
pub use settings::Settings;
pub use store::spec::StoreSpec;
pub use strategy::Strategy;
pub use verdict::Verdict;
pub use waits::{WaitMs, Waits};
