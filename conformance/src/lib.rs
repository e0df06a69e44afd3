//! The contract of `lockkeeper` as a suite of cases that runs on any lock provider.
//!
//! Each case is named after the rule of the contract that it tests. It runs on a fresh, throw-away
//! store that a [`Fixture`] makes, through as many keepers and processes as it needs. What a store
//! cannot do (no other process can reach it, nothing can cut it off) shows as *ignored*, with the
//! reason; it is never passed over in silence.
//!
//! # Running it on a store of one's own
//! A test without the usual harness, in `Cargo.toml`:
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//! and `tests/conformance.rs`:
//! ```no_run
//! use std::sync::Arc;
//! use lockkeeper_conformance::{Fixture, Run, Suite};
//! use lockkeeper_core::{Error, LockProvider};
//! # #[derive(Default)] struct MyStore;
//! # impl MyStore {
//! #     fn provider(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> { unimplemented!() }
//! # }
//!
//! #[derive(Default)]
//! struct Fresh(MyStore); // a throw-away store
//!
//! impl Fixture for Fresh {
//!     fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
//!         self.0.provider(namespace) // each one is another keeper's way to the same store
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     Run::new()
//!         .suite(Suite::new(env!("CARGO_PKG_NAME"), "mine", || Box::new(Fresh::default())))
//!         .main()
//! }
//! ```
//! The further methods of [`Fixture`] are hooks for faults, and [`Suite::processes`] says how
//! another process reaches the store: the more there are, the more cases run. `cargo test --test
//! conformance -- rule_03` runs the cases of one rule.
//!
//! # What a case may rely on
//! No case takes a quick machine for granted: nothing is synchronised by sleeping, and the only
//! limits to a wait are [`Suite::patience`] and what the contract itself says in seconds.

mod cases;
mod child;
mod ear;
mod fixture;
mod remote;
mod rig;
mod run;
mod scratch;
mod tap;

pub use fixture::{Fixture, Restore};
pub use run::{Run, Suite, Verdict};
