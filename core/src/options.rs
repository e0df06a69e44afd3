//! How one acquisition differs from the keeper's defaults.

use std::time::Duration;

use crate::cancel::CancelToken;
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;

/// The longest wait and ttl that can be represented: a hundred years.
pub const MAX_DURATION: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

/// How long an acquisition may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The acquisition waits at most this long. Zero is one attempt.
    AtMost(Duration),
    /// The acquisition waits until the lock is granted, or the acquisition is cancelled.
    Forever,
}

/// Whether a lease is renewed while its guard lives.
///
/// ```
/// use std::time::Duration;
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::LeasePolicy;
///
/// let nightly = LeasePolicy::Fixed { ttl: Duration::from_secs(3600) };
/// assert!(!nightly.is_renewed());
/// assert_eq!(nightly.ttl().as_secs(), 3600);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePolicy {
    /// The keeper renews the lease. `ttl` is the longest time that the lock outlives the last
    /// renewal of its holder.
    Renewed {
        /// From 100 ms (or what the store needs) to a hundred years.
        ttl: Duration,
    },
    /// The keeper does not renew the lease: the guard is lost after `ttl` less the margin, unless
    /// [`LockGuard::renew`](crate::LockGuard::renew) is called. It is never handed over, so each
    /// grant costs the store an acquire and a release.
    Fixed {
        /// From 100 ms (or what the store needs) to a hundred years.
        ttl: Duration,
    },
}

impl LeasePolicy {
    /// Returns the ttl of either policy.
    pub const fn ttl(self) -> Duration {
        match self {
            LeasePolicy::Renewed { ttl } | LeasePolicy::Fixed { ttl } => ttl,
        }
    }

    /// Returns whether the keeper renews the lease.
    pub const fn is_renewed(self) -> bool {
        matches!(self, LeasePolicy::Renewed { .. })
    }

    pub(crate) fn check(self, capabilities: &Capabilities) -> Result<(), Error> {
        let (ttl, least) = (self.ttl(), capabilities.min_ttl());
        let step = capabilities.ttl_step();
        let (kind, text) = if ttl.is_zero() {
            let text =
                format!("a ttl of zero would be over before it begins; use {least:?} or more");
            (ErrorKind::InvalidTtl, text)
        } else if ttl > MAX_DURATION {
            let text =
                format!("a ttl of {ttl:?} cannot be represented; use a hundred years or less");
            (ErrorKind::InvalidTtl, text)
        } else if ttl < least {
            let text =
                format!("a ttl of {ttl:?} is too short for this store; use {least:?} or more");
            (ErrorKind::TtlTooShort, text)
        } else if ttl.as_nanos() % step.as_nanos().max(1) != 0 {
            let text = format!(
                "a ttl of {ttl:?} is no multiple of {step:?}, in which this store counts; use one"
            );
            (ErrorKind::InvalidTtl, text)
        } else {
            return Ok(());
        };
        Err(Error::new(kind, text))
    }
}

/// The lease that an acquisition asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    pub(crate) mode: Mode,
    pub(crate) policy: LeasePolicy,
    /// The longest time for which the keeper renews the lease.
    pub(crate) max_hold: Option<Duration>,
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

/// What a waiting acquisition does while the store cannot be reached.
///
/// A single attempt always fails at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outage {
    /// The acquisition asks again, at growing intervals, until its wait is over. It gets the lock if
    /// the store is back in time. Otherwise the error says for how long the store could not be
    /// reached. One thread of the keeper asks, and the others wait for its result.
    #[default]
    Wait,
    /// The acquisition fails at once with [`ErrorKind::Unavailable`]. A request whose reply was
    /// lost is still repeated for a short time, as for a single attempt.
    Fail,
}

/// Options of one [`acquire`](crate::LockKeeper::acquire). Options that are not set have the keeper's
/// default.
///
/// ```
/// use std::time::Duration;
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{AcquireOptions, CancelToken, LeasePolicy};
///
/// let cancel = CancelToken::new();
/// let options = AcquireOptions::new()
///     .wait(Duration::from_millis(250))
///     .lease(LeasePolicy::Fixed { ttl: Duration::from_secs(5) })
///     .cancel(&cancel);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AcquireOptions {
    pub(crate) mode: Mode,
    pub(crate) wait: Option<Wait>,
    pub(crate) lease: Option<LeasePolicy>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) outage: Option<Outage>,
    pub(crate) cancel: Option<CancelToken>,
}

impl AcquireOptions {
    /// Makes options that all have the keeper's default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the mode, which decides beside which other holders the lock is granted. The default is
    /// [`Mode::Exclusive`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Waits at most `wait`, with a resolution of a millisecond or better. Zero is one attempt.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(Wait::AtMost(wait));
        self
    }

    /// Blocks until the lock is granted, or the acquisition is cancelled.
    #[must_use]
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Sets the ttl, and whether the lease is renewed.
    #[must_use]
    pub fn lease(mut self, policy: LeasePolicy) -> Self {
        self.lease = Some(policy);
        self
    }

    /// Sets the longest time for which the keeper renews the lease, from 100 ms to a hundred years after
    /// the grant or hand-over.
    ///
    /// It makes a holder that hangs, but lives, give the lock up. Its guard is lost when the lease runs out, at the
    /// latest `max_hold` plus the ttl after the grant. A holder that works on can call
    /// [`LockGuard::renew`](crate::LockGuard::renew), with which the time begins anew. A fixed lease is not renewed
    /// anyway.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets what the wait does while the store cannot be reached.
    #[must_use]
    pub fn outage(mut self, outage: Outage) -> Self {
        self.outage = Some(outage);
        self
    }

    /// Ends the wait when `token` is cancelled.
    #[must_use]
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Returns the token that ends the wait, if there is one.
    pub fn cancel_token(&self) -> Option<&CancelToken> {
        self.cancel.as_ref()
    }

    /// Checks the values that are set. The others are the keeper's, which were checked when it was built. A check
    /// of all values took a sixth of the time of a lock within the process.
    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), Error> {
        self.mode.check(capabilities)?;
        self.wait.map_or(Ok(()), Wait::check)?;
        self.lease
            .map_or(Ok(()), |lease| lease.check(capabilities))?;
        self.max_hold.map_or(Ok(()), check_max_hold)
    }
}

fn check_max_hold(max_hold: Duration) -> Result<(), Error> {
    let least = Capabilities::MIN_TTL;
    if (least..=MAX_DURATION).contains(&max_hold) {
        return Ok(());
    }
    let text =
        format!("a max_hold of {max_hold:?} is out of range; use {least:?} to a hundred years");
    Err(Error::new(ErrorKind::InvalidValue, text))
}

/// Options of opening a store; what is not set is the config's.
///
/// ```
/// use std::time::Duration;
/// # mod lockkeeper { pub use lockkeeper_core::*; pub mod backend { pub use lockkeeper_core::*; } }
/// use lockkeeper::CancelToken;
/// use lockkeeper::backend::OpenOptions;
///
/// let shutdown = CancelToken::new();
/// let options = OpenOptions::new().wait(Duration::from_secs(30)).cancel(&shutdown);
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(crate) wait: Option<Wait>,
    pub(crate) cancel: Option<CancelToken>,
}

impl OpenOptions {
    /// Makes options with which everything is the config's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits at most `wait` for a store that cannot be reached, in place of
    /// [`Config::open_wait`](crate::Config::open_wait). Zero is one attempt.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(Wait::AtMost(wait));
        self
    }

    /// Waits until the store can be reached, or opening is cancelled. No fallback is opened then.
    #[must_use]
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Ends the wait when `token` is cancelled.
    #[must_use]
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }
}

/// The settings of a keeper, which an acquisition uses where its options name nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) wait: Wait,
    pub(crate) lease: LeasePolicy,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) outage: Outage,
    pub(crate) margin: Option<Duration>,
    pub(crate) handover_max: u32,
    pub(crate) handover_time: Duration,
    pub(crate) epoch_offset: Duration,
}
