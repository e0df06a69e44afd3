//! How one acquisition differs from the keeper's defaults.

use std::time::Duration;

use crate::cancel::CancelToken;
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind};

/// The longest wait and ttl that can be represented: a hundred years.
pub const MAX_DURATION: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

/// How long an acquisition may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At most this long. Zero is one attempt.
    AtMost(Duration),
    /// Until it is granted or cancelled.
    Forever,
}

/// Whether a lease is renewed while its guard lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePolicy {
    /// The keeper renews it. `ttl` is the longest time that the lock outlives the holder's last
    /// sign of life.
    Renewed {
        /// From 100 ms (or what the store needs) to a hundred years.
        ttl: Duration,
    },
    /// The lease is not renewed: the guard is lost after `ttl`, less the margin, unless
    /// [`LockGuard::renew`](crate::LockGuard::renew) is called. Never handed over, so each grant
    /// costs the store an acquire and a release.
    Fixed {
        /// From 100 ms (or what the store needs) to a hundred years.
        ttl: Duration,
    },
}

impl LeasePolicy {
    /// The ttl of either.
    pub const fn ttl(self) -> Duration {
        match self {
            LeasePolicy::Renewed { ttl } | LeasePolicy::Fixed { ttl } => ttl,
        }
    }

    /// Whether the keeper renews it.
    pub const fn is_renewed(self) -> bool {
        matches!(self, LeasePolicy::Renewed { .. })
    }

    pub(crate) fn check(self, capabilities: &Capabilities) -> Result<(), Error> {
        let (ttl, least) = (self.ttl(), capabilities.min_ttl());
        if ttl.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidTtl,
                format!("a ttl of zero would be over before it begins; use {least:?} or more"),
            ));
        }
        if ttl > MAX_DURATION {
            return Err(Error::new(
                ErrorKind::InvalidTtl,
                format!("a ttl of {ttl:?} cannot be represented; use a hundred years or less"),
            ));
        }
        if ttl < least {
            return Err(Error::new(
                ErrorKind::TtlTooShort,
                format!("a ttl of {ttl:?} is too short for this store; use {least:?} or more"),
            ));
        }
        Ok(())
    }
}

impl Wait {
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Wait::AtMost(wait) if wait > MAX_DURATION => Err(Error::new(
                ErrorKind::InvalidWait,
                format!(
                    "a wait of {wait:?} cannot be represented; use a hundred years or less, or `forever`"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Options of one [`acquire`](crate::LockKeeper::acquire); what is not set is the keeper's default.
///
/// ```
/// use std::time::Duration;
/// use lockkeeper_core::{AcquireOptions, CancelToken, LeasePolicy};
///
/// let cancel = CancelToken::new();
/// let options = AcquireOptions::new()
///     .wait(Duration::from_millis(250))
///     .lease(LeasePolicy::Fixed { ttl: Duration::from_secs(5) })
///     .cancel(&cancel);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AcquireOptions {
    pub(crate) wait: Option<Wait>,
    pub(crate) lease: Option<LeasePolicy>,
    pub(crate) cancel: Option<CancelToken>,
}

impl AcquireOptions {
    /// The keeper's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks at most `wait`, to the millisecond or better. Zero is one attempt.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(Wait::AtMost(wait));
        self
    }

    /// Blocks until it is granted or cancelled.
    #[must_use]
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// The ttl, and whether it is renewed.
    #[must_use]
    pub fn lease(mut self, policy: LeasePolicy) -> Self {
        self.lease = Some(policy);
        self
    }

    /// Lets `token` wake the wait.
    #[must_use]
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }
}

/// What an acquisition goes by where it names nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) wait: Wait,
    pub(crate) lease: LeasePolicy,
    pub(crate) margin: Option<Duration>,
    pub(crate) handover_max: u32,
    pub(crate) handover_time: Duration,
}
