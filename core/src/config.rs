//! The settings of a keeper: one set of keys, from a URL, the environment, a config file or code.

pub(crate) mod driver;
mod keys;
mod parsed;
mod sources;
pub(crate) mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Capability;
use crate::clock::{Clock, SystemClock};
use crate::config::url::StoreUrl;
use crate::engine::observer::{Notifier, Observer};
use crate::error::{Error, ErrorKind};
use crate::options::{LeasePolicy, Outage, Wait};

pub use keys::{COMMON_KEYS, Key, KeySpec, KeyValue, MEMBER, Takes};
pub(crate) use parsed::ParsedConfig;

/// The store, and how to lock on it.
///
/// [`COMMON_KEYS`] are the keys that every store takes, and backends add keys of their own. The page of the crate
/// `lockkeeper` ends with a table of all keys. An unknown key is an error, and so is a key that is given twice.
/// Durations are written `500ms`, `30s`, `2m`. In a URL, keys are query parameters. In the environment, they are
/// upper-case variables with a prefix. In a config file, they are a table with `url` (feature `serde`). In code
/// they have types.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use std::time::Duration;
/// use lockkeeper::{Config, Wait};
///
/// let config = Config::from_url("sqlite:/var/lib/shop/locks.db?ttl=10s")?
///     .namespace("shop")
///     .wait(Wait::AtMost(Duration::from_secs(5)))
///     .set("create", "false")?;
/// assert_eq!(config.url().scheme(), "sqlite");
/// assert_eq!(Config::from_url("memory:?ttl=1s&ttl=2s").unwrap_err().to_string(),
///     "`ttl` is given twice; say it once");
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone)]
pub struct Config {
    url: StoreUrl,
    values: BTreeMap<String, Vec<String>>,
    /// The environment variable of each key, and of the `url`.
    variables: BTreeMap<String, String>,
    pub(crate) notifier: Notifier,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Config {
    /// Reads the store and the keys from a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`], or [`ErrorKind::InvalidValue`] for a key that is given twice.
    /// Values are checked on opening.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (url, pairs) = StoreUrl::parse(url)?;
        let config = Self {
            url,
            values: BTreeMap::new(),
            variables: BTreeMap::new(),
            notifier: Notifier::default(),
            clock: Arc::new(SystemClock),
        };
        let mut pairs = pairs.into_iter();
        pairs.try_fold(config, |config, (key, value)| config.add(&key, value))
    }

    /// Adds a key that is not set yet. The values of a list have white space between them, or come by several
    /// calls.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the key is set already.
    pub fn set(self, key: &str, value: &str) -> Result<Self, Error> {
        // A list without values stays a value, which opening refuses as `?require=`: the caller meant to require something.
        if !keys::is_list(key) || value.trim().is_empty() {
            return self.add(key, value.to_owned());
        }
        let mut parts = value.split_whitespace();
        parts.try_fold(self, |config, part| config.add(key, part.to_owned()))
    }

    /// Adds a key with a type, such as a key of one backend. Opening checks its range, and that it is
    /// not set twice.
    ///
    /// ```
    /// # mod lockkeeper { pub use lockkeeper_core::*; pub mod backend { pub use lockkeeper_core::*; } }
    /// use lockkeeper::Config;
    /// use lockkeeper::backend::{Key, Takes};
    ///
    /// const REPLICAS: Key<u32> = Key::new("replicas", Takes::Number(0, 9), "0", "how many must agree");
    /// let config = Config::from_url("redis://127.0.0.1")?.with(&REPLICAS, 2);
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    #[must_use]
    pub fn with<T: KeyValue>(self, key: &Key<T>, value: T) -> Self {
        self.put(key.spec.name, value.into_text())
    }

    fn add(self, key: &str, value: String) -> Result<Self, Error> {
        match self.values.contains_key(key) && !keys::is_list(key) {
            true => Err(given_twice(key)),
            false => Ok(self.put(key, value)),
        }
    }

    /// Adds the environment variable of a key to an error about that key.
    pub(crate) fn about(&self, key: &str, error: Error) -> Error {
        match self.variables.get(key) {
            Some(variable) => in_variable(variable, &error),
            None => error,
        }
    }

    fn put(mut self, key: &str, value: String) -> Self {
        self.values.entry(key.to_owned()).or_default().push(value);
        self
    }

    /// Sets how long an acquisition may block.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        self.with(&keys::WAIT, wait)
    }

    /// Sets what a waiting acquisition does during an outage.
    #[must_use]
    pub fn outage(self, outage: Outage) -> Self {
        self.with(&keys::OUTAGE, outage)
    }

    /// Sets how long opening may wait for a store that cannot be reached, such as one that starts together
    /// with this program. The default is zero: opening fails at once.
    ///
    /// Opening tries the store again with a growing pause, and notifies each [`Observer`] once. When the
    /// time is over, opening finishes the attempt that is under way (`connect_timeout`), and then tries each
    /// [`fallback`](Self::fallback) once. So [`Wait::Forever`] with a fallback is an error, unless
    /// [`OpenOptions::wait`](crate::OpenOptions::wait) replaces it. Opening waits only for an unreachable
    /// store: a wrong password fails at once.
    #[must_use]
    pub fn open_wait(self, wait: Wait) -> Self {
        self.with(&keys::OPEN_WAIT, wait)
    }

    /// Sets whether the keeper renews leases, and their ttl.
    #[must_use]
    pub fn lease(self, policy: LeasePolicy) -> Self {
        let lease = match policy.is_renewed() {
            true => "renewed",
            false => "fixed",
        };
        self.with(&keys::LEASE, lease.to_owned()).ttl(policy.ttl())
    }

    /// Sets how long a lock outlives the last renewal of its holder.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(&keys::TTL, ttl)
    }

    /// Sets the longest time for which the keeper renews a lease, as
    /// [`AcquireOptions::max_hold`](crate::AcquireOptions::max_hold) explains.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(&keys::MAX_HOLD, max_hold)
    }

    /// Sets how much earlier than the store a guard considers itself lost.
    #[must_use]
    pub fn margin(self, margin: Duration) -> Self {
        self.with(&keys::MARGIN, margin)
    }

    /// Sets how many hand-overs in a row stay within the process: 0 (none) to 127.
    #[must_use]
    pub fn handover_max(self, times: u32) -> Self {
        self.with(&keys::HANDOVER_MAX, times)
    }

    /// Sets how long a lock may be handed over within the process.
    #[must_use]
    pub fn handover_time(self, time: Duration) -> Self {
        self.with(&keys::HANDOVER_TIME, time)
    }

    /// Adds a time to the epochs of the store. Then the tokens of a name keep growing after its locks
    /// have moved here from another store.
    ///
    /// All stores count epochs in the same unit. All except MySQL and MariaDB follow the clock. So tokens keep
    /// growing in a move to one of those, as far as the clocks of the hosts agree. MySQL and MariaDB count from the
    /// start of the server. If the server was started before the last grant of the other store, tokens fall by its
    /// uptime (`SHOW GLOBAL STATUS LIKE 'Uptime'`). Data that refuse smaller tokens then refuse every write.
    /// Restart that server during the move, or use this setting:
    ///
    /// - On each move to a server of MySQL or MariaDB, increase it by at least that server's uptime,
    ///   rounded up generously: `epoch_offset=30days`.
    /// - Keep it on all later moves, also those to other stores. Never make it smaller.
    /// - All keepers of a store must have the same value. Stop keepers with the old value before keepers
    ///   with the new value start.
    ///
    /// Tokens have room for 136 years since 1970, this time included. A grant with an offset beyond that
    /// is released at once, and the acquisition fails with [`ErrorKind::InvalidValue`].
    ///
    /// Setting it, also to 0 s, silences the warning of a [`fallback`](Self::fallback) about tokens.
    #[must_use]
    pub fn epoch_offset(self, offset: Duration) -> Self {
        self.with(&keys::EPOCH_OFFSET, offset)
    }

    /// Sets the namespace, which keeps applications apart on one store.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.with(&keys::NAMESPACE, namespace.to_owned())
    }

    /// Refuses a store without `capability`.
    #[must_use]
    pub fn require(self, capability: Capability) -> Self {
        self.with(&keys::REQUIRE, capability)
    }

    /// Adds a store to open if the stores before it are unreachable.
    ///
    /// Locks on a fallback do not exclude processes that lock on the stores before it. The fallback has the common
    /// keys of the first store. It also has that store's `restart_grace`, unless `url` sets another or the fallback
    /// refuses the value. A quorum refuses one below the ttl.
    ///
    /// Tokens keep growing in a move to each store except MySQL and MariaDB, as far as the clocks of the hosts
    /// agree. In a move to these, such as the return to a first store, tokens may become smaller. Opening warns of
    /// that: [`epoch_offset`](Self::epoch_offset).
    #[must_use]
    pub fn fallback(self, url: &str) -> Self {
        self.with(&keys::FALLBACK, url.to_owned())
    }

    /// Removes a key if it is set. Then it has its default, or is set anew. Operators' tools do without `fallback`, since they ask
    /// about the first store.
    ///
    /// ```
    /// # mod lockkeeper { pub use lockkeeper_core::*; }
    /// use std::time::Duration;
    ///
    /// let config = lockkeeper::Config::from_url("memory:?ttl=30s")?;
    /// let config = config.without("ttl").ttl(Duration::from_secs(60));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.values.remove(key);
        self.variables.remove(key);
        self
    }

    /// Adds an observer, which receives all events, also a fallback at opening. Observers that were added
    /// before stay.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.notifier.add(observer);
        self
    }

    /// Sets the clock that counts deadlines, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Replaces the path of the URL, such as the file of `sqlite:`.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        self.url = self.url.with_path(path);
        self
    }

    /// Returns the URL of the store, without its keys.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// Returns whether the key is set, to any value.
    pub(crate) fn has_epoch_offset(&self) -> bool {
        self.text(&keys::EPOCH_OFFSET.spec).is_some()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns all values of a key as they are written.
    fn texts(&self, key: &KeySpec) -> &[String] {
        self.values.get(key.name).map_or(&[], Vec::as_slice)
    }

    /// Returns the value of a key as it is written.
    pub(crate) fn text(&self, key: &KeySpec) -> Option<&str> {
        self.texts(key).first().map(String::as_str)
    }

    /// Returns the value of a key.
    pub(crate) fn value<T: KeyValue>(&self, key: &Key<T>) -> Result<Option<T>, Error> {
        let text = self.text(&key.spec);
        let value = text.map(|text| key.parse(text)).transpose();
        value.map_err(|error| self.about(key.spec.name, error))
    }
}

/// Adds a variable to an error of a config. Such errors name no lock and no store, and have no source.
fn in_variable(variable: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{error} (variable {variable})"))
}

fn given_twice(key: &str) -> Error {
    Error::new(
        ErrorKind::InvalidValue,
        format!("`{key}` is given twice; say it once"),
    )
}

/// Shows the keys, and of the values only the store's URL: a value may be a secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.url)
            .field("keys", &self.values.keys())
            .finish_non_exhaustive()
    }
}
