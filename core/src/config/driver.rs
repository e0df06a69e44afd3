//! From a config to a keeper: the table of drivers, and what a driver is given.

mod member;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Capability;
use crate::clock::{Clock, HostInstant};
use crate::config::url::StoreUrl;
use crate::config::{COMMON_KEYS, Config, Key, KeySpec, KeyValue, ParsedConfig};
use crate::contract::provider::LockProvider;
use crate::engine::opening::open_through_outage;
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::options::{OpenOptions, Wait};

pub use member::Member;

/// The warning of a store that is opened with a fallback, or is one.
const TOKENS_MAY_SHRINK: &str = "tokens may become smaller when locks move to this store from another one that `fallback` lists: it does not count them by the clock. Data that refuse smaller tokens would refuse every write then. Raise `epoch_offset` on such a move; where no data keep tokens, set `epoch_offset=0s`";

/// The key of drivers that a fallback inherits. Without it, locks that a restart of the fallback lost would be
/// granted again at once, although the config asks for a pause.
const RESTART_GRACE: &str = "restart_grace";

/// Opens stores of some URL schemes.
pub trait Driver: fmt::Debug + Send + Sync + 'static {
    /// Returns the URL schemes that this driver opens, in lower case.
    fn schemes(&self) -> &'static [&'static str];

    /// Returns the config keys of its own, beside [`COMMON_KEYS`]. Other keys never reach
    /// [`open`](Driver::open).
    fn keys(&self) -> &'static [KeySpec];

    /// Returns what to write instead of a key that other clients of these stores take, such as `sslmode`. It
    /// becomes the end of the error about that key. The default is none; then the error names the nearest key.
    fn advice(&self, key: &str) -> Option<&'static str> {
        let _ = key;
        None
    }

    /// Returns whether the epochs of these stores follow the wall clock, as
    /// [`epoch_at`](crate::epoch_at) does. Then tokens keep growing when locks move here from
    /// another store. The default is false. If a fallback is listed and one of the stores returns
    /// false, opening warns of it.
    fn epochs_follow_clock(&self) -> bool {
        false
    }

    /// Returns whether a URL of `scheme` may name several hosts, which are servers of one store:
    /// [`StoreUrl::hosts`]. The default is false: such a URL is an error before the driver sees it.
    fn takes_several_hosts(&self, scheme: &str) -> bool {
        let _ = scheme;
        false
    }

    /// Checks what the keys alone do not tell, such as the path of the URL, or how many members are named. It is called
    /// before [`open`](Driver::open), also for a fallback that may never be opened. The default checks nothing.
    ///
    /// For a fallback it is first called with the inherited `restart_grace`. If that call fails, the fallback does not
    /// inherit the key, and the error is dropped.
    ///
    /// # Errors
    /// What is wrong with the config, before any store is talked to.
    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        let _ = context;
        Ok(())
    }

    /// Opens the store. Only here may a store be talked to.
    ///
    /// # Errors
    /// [`Error::unreachable`] only if the store did not answer: only this error makes the keeper try
    /// the listed fallback.
    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error>;
}

/// What a driver is to open.
#[derive(Debug)]
pub struct OpenContext<'a> {
    drivers: &'a Drivers,
    config: &'a Config,
    namespace: &'a str,
    ttl: Duration,
}

impl<'a> OpenContext<'a> {
    fn of(drivers: &'a Drivers, parsed: &ParsedConfig<'a>) -> Self {
        Self {
            drivers,
            config: parsed.config,
            namespace: parsed.namespace,
            ttl: parsed.settings.lease.ttl(),
        }
    }

    /// Returns where the store is.
    pub fn url(&self) -> &'a StoreUrl {
        self.config.url()
    }

    /// Returns the namespace, of 1 to 512 bytes: a name in two namespaces is two locks.
    pub fn namespace(&self) -> &'a str {
        self.namespace
    }

    /// Returns the ttl of the keeper. An acquisition can have another one.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the stores that this one is made of, as [`MEMBER`](crate::MEMBER) lists them. No store is
    /// talked to.
    ///
    /// # Errors
    /// What is wrong with the config of a member, each with a kind of its own.
    pub fn members(&self) -> Result<Vec<Member>, Error> {
        let member = |config| Member::new(self.drivers, config);
        self.config.members()?.into_iter().map(member).collect()
    }

    /// Returns the clock of the deadlines of all requests.
    pub fn clock(&self) -> &'a Arc<dyn Clock> {
        &self.config.clock
    }

    /// Reports to the observer what may break locks on this store: see
    /// [`Observer::warning`](crate::Observer::warning). What breaks them for sure is an error.
    pub fn warn(&self, text: &str) {
        let store = self.url().to_string();
        self.config.notifier.notify(|o| o.warning(&store, text));
    }

    /// Returns the value of one of this driver's own keys. It is of the key's type and in its range.
    ///
    /// # Errors
    /// Only for a key that [`Driver::keys`] lacks: as [`Key::parse`].
    pub fn value<T: KeyValue>(&self, key: &Key<T>) -> Result<Option<T>, Error> {
        self.config.value(key)
    }

    /// Returns an error about a key of the config. If the key is from an environment variable, the error names the
    /// variable.
    pub fn about<T>(&self, key: &Key<T>, error: Error) -> Error {
        self.config.about(key.spec.name, error)
    }
}

/// The drivers by which a program opens stores.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    known: Vec<Arc<dyn Driver>>,
    absent: Vec<(&'static [&'static str], &'static str)>,
}

impl Drivers {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a driver.
    #[must_use]
    pub fn with(mut self, driver: impl Driver) -> Self {
        self.known.push(Arc::new(driver));
        self
    }

    /// Adds schemes that were not compiled in, and the feature that adds them.
    #[must_use]
    pub fn without(mut self, schemes: &'static [&'static str], feature: &'static str) -> Self {
        self.absent.push((schemes, feature));
        self
    }

    /// Returns the schemes that can be opened.
    pub fn schemes(&self) -> impl Iterator<Item = &'static str> {
        self.known
            .iter()
            .flat_map(|driver| driver.schemes())
            .copied()
    }

    /// Returns all keys with the schemes that take them: the [`COMMON_KEYS`], then those of each driver.
    pub fn keys(&self) -> Vec<(KeySpec, Vec<&'static str>)> {
        let schemes: Vec<_> = self.schemes().collect();
        let common = COMMON_KEYS.iter();
        let mut all: Vec<_> = common.map(|key| (*key, schemes.clone())).collect();
        for driver in &self.known {
            for key in driver.keys() {
                match all.iter_mut().find(|(known, _)| known == key) {
                    Some((_, schemes)) => schemes.extend(driver.schemes()),
                    None => all.push((*key, driver.schemes().to_vec())),
                }
            }
        }
        all
    }

    /// Opens a keeper.
    ///
    /// Everything that can be wrong with `config` and its fallbacks is found before a store is
    /// talked to. A fallback is used only when the store before it does not answer
    /// ([`Error::is_unreachable`]); the observer is notified, and the keeper stays with it. The first
    /// store is waited for as long as [`Config::open_wait`] says, and each fallback is tried once after
    /// that. The observer is warned of each listed store on which tokens may become smaller
    /// ([`Config::epoch_offset`]).
    ///
    /// # Errors
    /// What is wrong with the config, each with a kind of its own; or why the (last) store could
    /// not be opened.
    pub fn open(&self, config: &Config) -> Result<LockKeeper, Error> {
        self.open_with(config, &OpenOptions::new())
    }

    /// Opens a keeper, as [`open`](Self::open) does, with options of this call.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`ErrorKind::Cancelled`].
    pub fn open_with(&self, config: &Config, options: &OpenOptions) -> Result<LockKeeper, Error> {
        let fallbacks = self.fallbacks(config)?;
        let stores = self.check_all(config, &fallbacks, options.wait)?;
        let notifier = &config.notifier;
        if stores.len() > 1 && !config.has_epoch_offset() {
            for (driver, parsed) in &stores {
                if !driver.epochs_follow_clock() {
                    OpenContext::of(self, parsed).warn(TOKENS_MAY_SHRINK);
                }
            }
        }
        let mut failed: Option<(String, Error)> = None;
        for (driver, parsed) in stores {
            let url = parsed.config.url().to_string();
            if let Some((from, reason)) = &failed {
                notifier.notify(|o| o.fallback(from, &url, reason));
            }
            let context = OpenContext::of(self, &parsed);
            let open = || driver.open(&context);
            let until = match options.wait.unwrap_or(parsed.open_wait) {
                _ if failed.is_some() => None,
                Wait::AtMost(Duration::ZERO) => None,
                Wait::AtMost(wait) => Some(config.clock.now() + wait),
                Wait::Forever => Some(HostInstant::NEVER),
            };
            let opened = match until {
                None => open(),
                Some(until) => {
                    let waits = |reason: &Error| notifier.notify(|o| o.open_waits(&url, reason));
                    let cancel = options.cancel.as_ref();
                    open_through_outage(&*config.clock, until, cancel, waits, open)
                }
            };
            match opened {
                Err(error) if error.is_unreachable() => failed = Some((url, error)),
                opened => return build(parsed, opened?),
            }
        }
        let none = || Error::new(ErrorKind::InvalidUrl, "no store is named");
        Err(failed.map_or_else(none, |(_, error)| error))
    }

    /// Checks `config` and its fallbacks as [`open`](Self::open) does, and talks to no store.
    ///
    /// # Errors
    /// What is wrong with the config, each with a kind of its own.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        let fallbacks = self.fallbacks(config)?;
        self.check_all(config, &fallbacks, None).map(drop)
    }

    /// Returns the fallbacks of `config`, with the keys that they inherit.
    fn fallbacks(&self, config: &Config) -> Result<Vec<Config>, Error> {
        let mut fallbacks = config.fallbacks()?;
        for fallback in &mut fallbacks {
            let mut heir = fallback.clone();
            heir.inherit(RESTART_GRACE, config);
            // A store may lack the key or refuse the value. Other errors come again when all stores are checked.
            if self.check_one(&heir).is_ok() {
                *fallback = heir;
            }
        }
        Ok(fallbacks)
    }

    /// Returns the stores in the order in which they are tried. `wait` replaces the `open_wait` of the config.
    fn check_all<'a>(
        &self,
        config: &'a Config,
        fallbacks: &'a [Config],
        wait: Option<Wait>,
    ) -> Result<Vec<Checked<'_, 'a>>, Error> {
        let stores = std::iter::once(config).chain(fallbacks);
        let stores: Vec<_> = stores
            .map(|it| self.check_one(it))
            .collect::<Result<_, _>>()?;
        let crosses_hosts =
            |parsed: &ParsedConfig<'_>| parsed.required.contains(&Capability::CrossHost);
        if stores.len() > 1 && stores.iter().any(|(_, parsed)| crosses_hosts(parsed)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "`require=cross_host` and `fallback` exclude each other: hosts that fell back would not exclude those that did not",
            ));
        }
        // The fallbacks have the `open_wait` of the first store.
        let waits_forever = |(_, parsed): &Checked<'_, '_>| parsed.open_wait == Wait::Forever;
        let is_first_tried_forever = wait.is_none() && stores.first().is_some_and(waits_forever);
        if stores.len() > 1 && is_first_tried_forever {
            return Err(config.about(
                "open_wait",
                Error::new(
                    ErrorKind::InvalidWait,
                    "`open_wait=forever` and `fallback` exclude each other: opening would wait for the first store and never try the fallback; set `open_wait` to a duration such as 30s, or leave `fallback` out",
                ),
            ));
        }
        Ok(stores)
    }

    /// Returns the driver of `config` and its parsed keys, if all of them are known and valid.
    fn check_one<'a>(&self, config: &'a Config) -> Result<Checked<'_, 'a>, Error> {
        let about = |key| move |error| config.about(key, error);
        let driver = self.driver(config.url().scheme()).map_err(about("url"))?;
        let url = config.url();
        if url.hosts().nth(1).is_some() && !driver.takes_several_hosts(url.scheme()) {
            return Err(about("url")(Error::new(
                ErrorKind::InvalidUrl,
                "the URL names several hosts; name one",
            )));
        }
        for key in config.keys() {
            if !known_keys(driver.as_ref()).any(|known| known == key) {
                return Err(config.about(key, unknown_key(key, driver.as_ref())));
            }
        }
        let parsed = config.parse()?;
        for key in driver.keys() {
            let checked = config.text(key).map_or(Ok(()), |text| key.check(text));
            checked.map_err(about(key.name))?;
        }
        driver.check(&OpenContext::of(self, &parsed))?;
        Ok((driver, parsed))
    }

    fn driver(&self, scheme: &str) -> Result<&Arc<dyn Driver>, Error> {
        if let Some(driver) = self.known.iter().find(|d| d.schemes().contains(&scheme)) {
            return Ok(driver);
        }
        if let Some((_, feature)) = self.absent.iter().find(|(it, _)| it.contains(&scheme)) {
            return Err(Error::new(
                ErrorKind::FeatureDisabled,
                format!("`{scheme}:` was not compiled in; build with the feature `{feature}`"),
            ));
        }
        let absent = self
            .absent
            .iter()
            .flat_map(|(schemes, _)| *schemes)
            .copied();
        let hint = match nearest(scheme, self.schemes().chain(absent.clone())) {
            Some(nearest) => format!("did you mean `{nearest}:`?"),
            None => {
                let list = |of: Vec<&str>| {
                    of.iter()
                        .map(|it| format!("{it}:"))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                let known = list(self.schemes().collect());
                match list(absent.collect()) {
                    absent if absent.is_empty() => format!("use one of {known}"),
                    absent => format!("use one of {known}; or with other features {absent}"),
                }
            }
        };
        let text = format!("no driver opens `{scheme}:`; {hint}");
        Err(Error::new(ErrorKind::UnknownScheme, text))
    }
}

/// The driver of a store, and its parsed config.
type Checked<'d, 'c> = (&'d Arc<dyn Driver>, ParsedConfig<'c>);

fn build(parsed: ParsedConfig<'_>, provider: Arc<dyn LockProvider>) -> Result<LockKeeper, Error> {
    let mut builder = LockKeeper::builder(provider)
        .settings(parsed.settings)
        .clock(Arc::clone(&parsed.config.clock))
        .notifier(parsed.config.notifier.clone());
    for capability in parsed.required {
        builder = builder.require(capability);
    }
    builder.build()
}

fn known_keys(driver: &dyn Driver) -> impl Iterator<Item = &'static str> {
    COMMON_KEYS.iter().chain(driver.keys()).map(|key| key.name)
}

/// Returns the text that is most like `text`, if it is like it.
fn nearest(text: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let distances = known.map(|known| (strsim::damerau_levenshtein(text, known), known));
    let (distance, nearest) = distances.min()?;
    (distance <= 1 + nearest.len() / 3).then_some(nearest)
}

/// Names the key and what to write instead, never the value: it may be a secret.
fn unknown_key(key: &str, driver: &dyn Driver) -> Error {
    let known = || known_keys(driver);
    let hint = match (driver.advice(key), nearest(key, known())) {
        (Some(advice), _) => advice.to_owned(),
        (None, Some(nearest)) => format!("did you mean `{nearest}`?"),
        (None, None) => format!("there are {}", known().collect::<Vec<_>>().join(", ")),
    };
    Error::new(
        ErrorKind::UnknownKey,
        format!("unknown key `{key}`; {hint}"),
    )
}
