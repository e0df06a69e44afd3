//! The contract and the engine of `lockkeeper`.
//!
//! A store is a [`Backend`]; a [`LockKeeper`] over it gives threads blocking locks with
//! leases, renewal, fencing tokens, a FIFO queue and hand-over. Programs use the facade crate
//! `lockkeeper`, which opens stores by URL; this crate is for authors of backends. It knows no
//! store and does no I/O.

mod admin;
mod backend;
mod batch;
mod builder;
mod cancel;
mod capabilities;
mod clock;
mod config;
mod driver;
mod engine;
mod error;
mod guard;
mod keeper;
mod lock_all;
mod lost_signal;
mod mode;
mod name;
mod observer;
mod options;
mod proof;
mod provider;
mod reentrant;
mod schedule;
mod semaphore;
mod sync;
mod timer;
mod token;
mod transaction_lock;
mod url;
mod workers;

pub use admin::{Admin, Finding, HeldName, Holder, Severity};
pub use backend::Backend;
pub use batch::{AttemptRequest, Operation, ReleaseRequest, RenewRequest};
pub use builder::LockKeeperBuilder;
pub use cancel::{CancelRegistration, CancelToken};
pub use capabilities::{Capabilities, Capability};
pub use clock::{Clock, HostInstant, ManualClock, SystemClock};
pub use config::{COMMON_KEYS, Config, Key, KeySpec, KeyValue, MEMBER, Takes};
pub use driver::{Driver, Drivers, Member, OpenContext};
pub use engine::verify::{LeaseVerifier, LeaseVerifiers};
pub use error::{Error, ErrorKind};
pub use guard::LockGuard;
pub use keeper::{LockKeeper, WithLock};
pub use lock_all::LockGuards;
pub use lost_signal::{LostSignal, WaitOutcome};
pub use mode::{MAX_PERMITS, Mode, limit_mismatch};
pub use name::{AsLockName, LockName, MAX_NAME_BYTES};
pub use observer::{ObservedLock, Observer};
pub use options::{AcquireOptions, LeasePolicy, MAX_DURATION, OpenOptions, Outage, Wait};
pub use proof::{CommitProof, Proof, ProofValue};
pub use provider::{
    AcquireRequest, ErasedLease, Grant, LockProvider, Owner, Released, Renewal, StoreInfo, Usage,
};
pub use reentrant::{ReentrantGuard, ReentrantKeeper};
pub use schedule::Leader;
pub use semaphore::{Permit, Semaphore};
pub use timer::{Tick, Timer};
pub use token::{FencingToken, MAX_EPOCH, MAX_HANDOVERS, epoch_at, epochs_in};
pub use transaction_lock::{TransactionLock, TransactionLockSql};
pub use url::StoreUrl;
