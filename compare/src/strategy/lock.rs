//! What the scenarios ask of a lock.

use std::fmt;
use std::time::Duration;

use ::lockkeeper::{Capabilities, FencingToken, LeasePolicy, Usage};

use crate::error::Failure;

/// What the lock is asked for with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How long it may outlive its holder, and whether it is renewed.
    pub(crate) lease: LeasePolicy,
    /// How long to wait for it.
    pub(crate) wait: Duration,
    /// The thread that asks may hold it already, and is to have it again where that can be.
    pub(crate) again: bool,
}

impl Terms {
    /// A single attempt.
    pub(crate) fn at_once(self) -> Self {
        Self {
            wait: Duration::ZERO,
            ..self
        }
    }
}

/// A way of locking as one program uses it, with all its threads.
pub(crate) trait Lock: fmt::Debug + Send + Sync {
    /// Takes the lock; `None`: somebody else has it.
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure>;

    /// What it has cost its store so far, where only it can tell.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// The shortest lease that it can have.
    fn least_ttl(&self) -> Duration {
        Capabilities::MIN_TTL
    }

    /// Whether it can run out while its holder lives.
    fn has_fixed_lease(&self) -> bool {
        true
    }
}

impl<L: Lock + ?Sized> Lock for Box<L> {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        (**self).take(name, terms)
    }

    fn usage(&self) -> Option<Usage> {
        (**self).usage()
    }

    fn least_ttl(&self) -> Duration {
        (**self).least_ttl()
    }

    fn has_fixed_lease(&self) -> bool {
        (**self).has_fixed_lease()
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
