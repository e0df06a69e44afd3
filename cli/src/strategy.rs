//! Ways of locking. Each is a file that can be read as the explanation of its technique.

mod lockkeeper;
mod none;

use std::fmt;
use std::time::Duration;

use ::lockkeeper::{CancelToken, Capabilities, FencingToken, LeasePolicy, Usage};
use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;
use crate::row::Verdict;
use crate::store::Store;

/// Which way of locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// No lock: the control, which shows that the scenario can fail
    None,
    /// This library
    Lockkeeper,
}

impl Kind {
    /// The verdict that it must have.
    pub(crate) fn expected(self) -> Verdict {
        match self {
            Kind::None => Verdict::Wrong,
            Kind::Lockkeeper => Verdict::Right,
        }
    }

    /// Opens it on `store`, as one program would; `stop` wakes those who wait.
    pub(crate) fn open(
        self,
        store: &Store,
        stop: &CancelToken,
    ) -> Result<Box<dyn Strategy>, Failure> {
        Ok(match self {
            Kind::None => Box::new(none::NoLock),
            Kind::Lockkeeper => Box::new(lockkeeper::Lockkeeper::open(store.config(), stop)?),
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::None => "none",
            Kind::Lockkeeper => "lockkeeper",
        })
    }
}

/// What the lock is asked for with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How long it may outlive its holder, and whether it is renewed.
    pub(crate) lease: LeasePolicy,
    /// How long to wait for it.
    pub(crate) wait: Duration,
}

/// A way of locking as one program uses it, with all its threads.
pub(crate) trait Strategy: fmt::Debug + Send + Sync {
    /// Takes the lock; `None`: somebody else has it.
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure>;

    /// What it has cost its store so far, where that can be counted.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// The shortest lease that it can have.
    fn least_ttl(&self) -> Duration {
        Capabilities::MIN_TTL
    }
}

/// A lock that is held. Dropping it frees it.
pub(crate) trait Held {
    /// What the state can tell a late write by, where there is such a thing.
    fn token(&self) -> Option<FencingToken> {
        None
    }

    /// Tells, also on another thread, whether the holder has been told that it holds it no more.
    fn lost(&self) -> Box<dyn Fn() -> bool + Send> {
        Box::new(|| false)
    }

    /// Frees it.
    fn release(self: Box<Self>) -> Result<(), Failure>;
}
