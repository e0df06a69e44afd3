//! A store that another store is made of.

use std::sync::Arc;

use super::{Drivers, OpenContext, known_keys};
use crate::config::url::StoreUrl;
use crate::config::{COMMON_KEYS, Config, Key, KeySpec, KeyValue, Takes};
use crate::contract::provider::LockProvider;
use crate::error::Error;

/// A store that is part of another store: [`OpenContext::members`] lists them. It can be opened at any time,
/// since the whole may do without a member that cannot be reached.
///
/// A member has the common keys of the whole, such as the namespace. Its URL has its own keys.
#[derive(Clone, Debug)]
pub struct Member {
    drivers: Drivers,
    config: Config,
}

impl Member {
    /// Checks the config of a member.
    pub(super) fn new(drivers: &Drivers, config: Config) -> Result<Self, Error> {
        drivers.check_one(&config)?;
        let drivers = drivers.clone();
        Ok(Self { drivers, config })
    }

    /// Returns where the member is.
    pub fn url(&self) -> &StoreUrl {
        self.config.url()
    }

    /// Returns whether the member takes a key.
    pub fn takes(&self, key: &KeySpec) -> bool {
        let driver = self.drivers.driver(self.url().scheme());
        driver.is_ok_and(|driver| known_keys(driver.as_ref()).any(|known| known == key.name))
    }

    /// Returns the value of a key that the member takes.
    ///
    /// # Errors
    /// If it is set in code to a value out of its range.
    pub fn value<T: KeyValue>(&self, key: &Key<T>) -> Result<Option<T>, Error> {
        self.config.value(key)
    }

    /// Sets a key that is not given.
    #[must_use]
    pub fn with<T: KeyValue>(mut self, key: &Key<T>, value: T) -> Self {
        self.config = self.config.with(key, value);
        self
    }

    /// Returns a text that identifies the store without asking it: its URL with the member's own keys. Texts
    /// are left out, since one may be a secret.
    pub fn location(&self) -> String {
        let driver = self.drivers.driver(self.url().scheme());
        let keys = driver.map_or(&[][..], |driver| driver.keys()).iter();
        let keys = keys.filter(|key| !COMMON_KEYS.contains(key));
        let keys = keys.filter(|key| !matches!(key.takes, Takes::Text(_)));
        let query: Vec<_> = keys
            .filter_map(|key| Some((key.name, self.config.text(key)?)))
            .collect();
        StoreUrl::location(&self.url().to_string(), "", &query)
    }

    /// Opens the store.
    ///
    /// # Errors
    /// As [`Driver::open`](crate::Driver::open).
    pub fn open(&self) -> Result<Arc<dyn LockProvider>, Error> {
        let (driver, parsed) = self.drivers.check_one(&self.config)?;
        driver.open(&OpenContext::of(&self.drivers, &parsed))
    }
}
