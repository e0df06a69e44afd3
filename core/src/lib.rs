//! The contract and the engine of `lockkeeper`.
//!
//! A store becomes a [`LockProvider`]; a [`LockKeeper`] over it gives threads blocking locks with
//! leases, renewal, fencing tokens, a FIFO queue and hand-over. Programs use the facade crate
//! `lockkeeper`, which opens stores by URL; this crate is for authors of backends. It knows no
//! store and does no I/O.

mod cancel;
mod capabilities;
mod clock;
mod config;
mod driver;
mod engine;
mod error;
mod guard;
mod hold;
mod keeper;
mod name;
mod observer;
mod operator;
mod options;
mod proof;
mod provider;
mod queue;
mod reentrant;
mod sync;
mod token;
mod upkeep;
mod url;

pub use cancel::{CancelRegistration, CancelToken};
pub use capabilities::{Capabilities, Capability};
pub use clock::{Clock, ManualClock, Moment, SystemClock};
pub use config::{COMMON_KEYS, Config};
pub use driver::{Driver, Drivers, Target};
pub use error::{Error, ErrorKind};
pub use guard::{LockGuard, LostSignal, LostWait};
pub use keeper::{KeeperBuilder, LockKeeper, WithLock};
pub use name::{IntoName, LockName, MAX_NAME_BYTES};
pub use observer::Observer;
pub use operator::{Finding, HeldName, Holder, Operator, Severity};
pub use options::{AcquireOptions, LONGEST, LeasePolicy, Wait};
pub use proof::{CommitProof, Proof, ProofValue};
pub use provider::{
    AcquireRequest, Grant, Lease, LockProvider, Owner, Released, Renew, Renewal, Usage,
};
pub use reentrant::{ReentrantGuard, ReentrantKeeper};
pub use token::{FencingToken, MAX_EPOCH, MAX_HANDOVERS};
pub use url::StoreUrl;
