//! A test suite for the contract of `lockkeeper` that runs on any lock provider.
//!
//! Each case is named after the rule of the contract that it tests. A case runs on a fresh store
//! that a [`Fixture`] creates, with as many keepers and processes as the case needs. A case that
//! cannot run on a store is reported as *ignored*, with the reason.
//!
//! # Running it on your own store
//! Add a test without the usual harness to `Cargo.toml`:
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//! Write `tests/conformance.rs`:
//! ```no_run
//! use std::sync::Arc;
//! use lockkeeper_conformance::{Fixture, Run, Suite};
//! use lockkeeper_core::{Error, LockProvider};
//! # #[derive(Default)] struct MyStore;
//! # impl MyStore {
//! #     fn provider(&self, _namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
//! #         Err(Error::new(lockkeeper_core::ErrorKind::Unsupported, "the example has no store"))
//! #     }
//! # }
//!
//! #[derive(Default)]
//! struct Fresh(MyStore); // a temporary store
//!
//! impl Fixture for Fresh {
//!     fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
//!         self.0.provider(namespace) // each call opens another provider on the same store
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     Run::new()
//!         .suite(Suite::new(env!("CARGO_PKG_NAME"), "mine", || Box::new(Fresh::default())))
//!         .main()
//! }
//! ```
//! The other methods of [`Fixture`] are hooks that inject faults, and [`Suite::processes`] sets how
//! another process opens the store. More cases run with each hook. `cargo test --test conformance --
//! rule_03` runs the cases of one rule.
//!
//! # Timing
//! No case needs a fast machine. A case waits for events instead of sleeping, and its waits are
//! limited by [`Suite::timeout`] and by the seconds in the contract.

mod cases;
mod child;
mod child_process;
mod fixture;
mod history;
mod lateness;
mod mode_text;
mod modes;
mod recorder;
mod rig;
mod run;
mod tap;
mod temp_file;

pub use fixture::{Fixture, Loss, Restore};
pub use run::{Run, Suite, Verdict};
