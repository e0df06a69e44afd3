//! The contract and the engine of `lockkeeper`.
//!
//! A store is a [`Backend`]; a [`LockKeeper`] over it gives threads blocking locks with
//! leases, renewal, fencing tokens, a FIFO queue and hand-over. Programs use the facade crate
//! `lockkeeper`, which opens stores by URL; this crate is for authors of backends. It knows no
//! store and does no I/O.

#[cfg(not(unix))]
compile_error!("lockkeeper runs on Unix systems alone; see docs/guarantees.md");

mod cancel;
mod capabilities;
mod clock;
mod config;
mod contract;
mod engine;
mod error;
mod keeper;
mod mode;
mod name;
mod options;
mod process;
mod sync;
mod token;

pub use cancel::{CancelRegistration, CancelToken};
pub use capabilities::{Capabilities, Capability};
pub use clock::{Clock, HostInstant, ManualClock, SystemClock};
pub use config::driver::{Driver, Drivers, Member, OpenContext};
pub use config::url::StoreUrl;
pub use config::{COMMON_KEYS, Config, Key, KeySpec, KeyValue, MEMBER, Takes};
pub use contract::admin::{Admin, Finding, HeldName, Holder, Severity};
pub use contract::backend::Backend;
pub use contract::batch::{
    AttemptRequest, Operation, ReleaseDispatch, ReleaseRequest, RenewRequest, SentRelease,
};
pub use contract::provider::{
    AcquireRequest, ErasedLease, Grant, LeaseId, LockProvider, Owner, Released, Renewal, StoreInfo,
    Usage,
};
pub use contract::sql::{Proof, ProofValue, TransactionLockSql};
pub use contract::verifier::{LeaseVerifier, LeaseVerifiers};
pub use engine::observer::{ObservedLock, Observer};
pub use engine::timer::{Tick, Timer};
pub use error::{Error, ErrorKind};
pub use keeper::builder::LockKeeperBuilder;
pub use keeper::guard::LockGuard;
pub use keeper::lock_all::{InSet, LockGuards};
pub use keeper::lost_signal::{LostSignal, WaitOutcome};
pub use keeper::proof::CommitProof;
pub use keeper::reentrant::{ReentrantGuard, ReentrantKeeper};
pub use keeper::schedule::Leader;
pub use keeper::semaphore::{Permit, Semaphore};
pub use keeper::ticket::Ticket;
pub use keeper::transaction_lock::TransactionLock;
pub use keeper::{LockKeeper, RunLocked};
pub use mode::{MAX_PERMITS, Mode, limit_mismatch};
pub use name::{AsLockName, LockName, MAX_NAME_BYTES};
pub use options::{AcquireOptions, LeasePolicy, MAX_DURATION, OpenOptions, Outage, Wait};
pub use process::{host_name, process_id, process_label, set_process_label};
pub use token::{FencingToken, MAX_EPOCH, MAX_HANDOVERS, epoch_at, epochs_in};
