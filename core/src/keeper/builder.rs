//! Making a keeper from a provider and settings.

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Capability;
use crate::clock::{Clock, SystemClock};
use crate::contract::provider::LockProvider;
use crate::engine::observer::{Notifier, Observer};
use crate::engine::{AwaitReleases, Engine};
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::keeper::offset_admin::OffsetAdmin;
use crate::options::{AcquireOptions, LeasePolicy, Outage, Settings, Wait};
use crate::token::MAX_HANDOVERS;

impl LockKeeper {
    /// Begins to make a keeper over `provider`, with the defaults.
    pub fn builder(provider: Arc<dyn LockProvider>) -> LockKeeperBuilder {
        LockKeeperBuilder {
            provider,
            settings: Settings {
                wait: Wait::AtMost(Self::DEFAULT_WAIT),
                lease: LeasePolicy::Renewed {
                    ttl: Self::DEFAULT_TTL,
                },
                max_hold: None,
                outage: Outage::Wait,
                margin: None,
                handover_max: Self::DEFAULT_HANDOVER_MAX,
                handover_time: Self::DEFAULT_HANDOVER_TIME,
                epoch_offset: Duration::ZERO,
            },
            required: Vec::new(),
            clock: Arc::new(SystemClock),
            notifier: Notifier::default(),
        }
    }
}

/// Makes a [`LockKeeper`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LockKeeperBuilder {
    provider: Arc<dyn LockProvider>,
    settings: Settings,
    required: Vec<Capability>,
    clock: Arc<dyn Clock>,
    notifier: Notifier,
}

impl LockKeeperBuilder {
    pub(crate) fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the lease of an acquisition that names none. Default: renewed, 30 s.
    pub fn lease(mut self, policy: LeasePolicy) -> Self {
        self.settings.lease = policy;
        self
    }

    /// Sets the longest time for which leases are renewed where an acquisition names none, as
    /// [`AcquireOptions::max_hold`](crate::AcquireOptions::max_hold) explains. Default: no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.max_hold = Some(max_hold);
        self
    }

    /// Sets the wait of an acquisition that names none. Default: 10 s.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets what a waiting acquisition does while the store cannot be reached. Default: it waits.
    pub fn outage(mut self, outage: Outage) -> Self {
        self.settings.outage = outage;
        self
    }

    /// Sets how much earlier than the store a guard calls itself lost. That covers the time between
    /// a check and the work after it, and clocks that run at different speeds. Default: a tenth of
    /// the ttl, at most 1 s. Never less than what the store needs, and never more than half of the ttl.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.settings.margin = Some(margin);
        self
    }

    /// Sets how often in a row a lease is handed over within the process before other processes can
    /// get the name: 0 (never) to 127. Default: 100.
    pub fn handover_max(mut self, times: u32) -> Self {
        self.settings.handover_max = times;
        self
    }

    /// Sets for how long a lease is handed over within the process before other processes can get
    /// the name. Default: 50 ms.
    pub fn handover_time(mut self, time: Duration) -> Self {
        self.settings.handover_time = time;
        self
    }

    /// Adds a time to the epochs of the store. Then the tokens of a name keep growing after its locks
    /// have moved here from another store. Default: 0 s. [`Config::epoch_offset`] says when to use it.
    ///
    /// [`Config::epoch_offset`]: crate::Config::epoch_offset
    pub fn epoch_offset(mut self, offset: Duration) -> Self {
        self.settings.epoch_offset = offset;
        self
    }

    /// Refuses a store without `capability`.
    pub fn require(mut self, capability: Capability) -> Self {
        self.required.push(capability);
        self
    }

    /// Reports events to `observer`, and to those that were added before.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.notifier.add(observer);
        self
    }

    pub(crate) fn notifier(mut self, notifier: Notifier) -> Self {
        self.notifier = notifier;
        self
    }

    /// Counts deadlines by another clock; for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the keeper. The store is not contacted.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a required capability that the store lacks;
    /// [`ErrorKind::InvalidTtl`], [`ErrorKind::TtlTooShort`], [`ErrorKind::InvalidWait`] and
    /// [`ErrorKind::InvalidValue`] for a setting out of bounds.
    pub fn build(self) -> Result<LockKeeper, Error> {
        let backend = self.provider.backend();
        let capabilities = self.provider.capabilities();
        if let Some(missing) = self.required.iter().find(|it| !capabilities.has(**it)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "`{missing}` is required, and this store cannot promise it; {}",
                    missing.advice()
                ),
            )
            .with_backend(backend));
        }
        if self.settings.handover_max > MAX_HANDOVERS {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                format!(
                    "`handover_max` is {}, and a lease is handed over at most {MAX_HANDOVERS} times",
                    self.settings.handover_max
                ),
            ));
        }
        let defaults = AcquireOptions {
            wait: Some(self.settings.wait),
            lease: Some(self.settings.lease),
            max_hold: self.settings.max_hold,
            ..AcquireOptions::default()
        };
        defaults
            .check(&capabilities)
            .map_err(|error| error.with_backend(backend))?;
        let (settings, clock) = (self.settings, self.clock);
        let admin = OffsetAdmin::new(&self.provider, settings.epoch_offset);
        let engine = Engine::open(self.provider, settings, clock, self.notifier);
        Ok(LockKeeper {
            admin,
            _await_releases: AwaitReleases::new(&engine),
            engine,
        })
    }
}
