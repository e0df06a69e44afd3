//! From a config to a keeper: the table of drivers, and what a driver is given.

use std::fmt;
use std::sync::Arc;

use crate::capabilities::Capability;
use crate::clock::Clock;
use crate::config::{COMMON_KEYS, Config, Key, KeySpec, KeyValue, ParsedConfig};
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::observer::Notifier;
use crate::provider::LockProvider;
use crate::url::StoreUrl;

/// Opens stores of some URL schemes.
pub trait Driver: fmt::Debug + Send + Sync + 'static {
    /// The schemes that it answers to, in lower case.
    fn schemes(&self) -> &'static [&'static str];

    /// Returns the config keys of its own, beside [`COMMON_KEYS`]. Other keys never reach
    /// [`open`](Driver::open).
    fn keys(&self) -> &'static [KeySpec];

    /// Opens the store. Only here may a store be talked to.
    ///
    /// # Errors
    /// [`Error::unreachable`] only if the store did not answer: only this error makes the keeper try
    /// the listed fallback.
    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error>;
}

/// What a driver is to open.
#[derive(Debug)]
pub struct OpenContext<'a> {
    config: &'a Config,
    namespace: &'a str,
}

impl<'a> OpenContext<'a> {
    /// The place.
    pub fn url(&self) -> &'a StoreUrl {
        self.config.url()
    }

    /// Keeps applications apart on one store: names of two namespaces never meet. 1 to 512 bytes.
    pub fn namespace(&self) -> &'a str {
        self.namespace
    }

    /// The clock that requests will be counted on.
    pub fn clock(&self) -> &'a Arc<dyn Clock> {
        &self.config.clock
    }

    /// Tells the observer of something about the store that may break locks: see
    /// [`Observer::warning`](crate::Observer::warning). What breaks them for sure is an error.
    pub fn warn(&self, text: &str) {
        let store = self.url().to_string();
        let notifier = Notifier::new(self.config.observer.clone());
        notifier.notify(|o| o.warning(&store, text));
    }

    /// Returns the value of one of this driver's own keys. It is of the key's type and in its range.
    ///
    /// # Errors
    /// Only for a key that [`Driver::keys`] lacks: as [`Key::parse`].
    pub fn value<T: KeyValue>(&self, key: &Key<T>) -> Result<Option<T>, Error> {
        self.config.value(key)
    }
}

/// The drivers that a program has.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    known: Vec<Arc<dyn Driver>>,
    absent: Vec<(&'static [&'static str], &'static str)>,
}

impl Drivers {
    /// None.
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

    /// The schemes that can be opened.
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
    /// ([`Error::is_unreachable`]); it is told to the observer, and the keeper stays with it.
    ///
    /// # Errors
    /// What is wrong with the config, each with a kind of its own; or why the (last) store could
    /// not be opened.
    pub fn open(&self, config: &Config) -> Result<LockKeeper, Error> {
        let fallbacks = config.fallbacks()?;
        let first = self.check(config)?;
        if !fallbacks.is_empty() && first.1.required.contains(&Capability::CrossHost) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "`require=cross_host` and `fallback` exclude each other: hosts that fell back would not exclude those that did not",
            ));
        }
        let mut candidates = vec![first];
        for fallback in &fallbacks {
            candidates.push(self.check(fallback)?);
        }
        let notifier = Notifier::new(config.observer.clone());
        let mut failed: Option<(&Config, Error)> = None;
        for (driver, parsed) in candidates {
            let candidate = parsed.config;
            if let Some((from, reason)) = &failed {
                let (from, to) = (from.url().to_string(), candidate.url().to_string());
                notifier.notify(|o| o.fallback(&from, &to, reason));
            }
            let target = OpenContext {
                config: candidate,
                namespace: parsed.namespace,
            };
            match driver.open(&target) {
                Ok(provider) => return build(parsed, provider),
                Err(error) if error.is_unreachable() => {
                    failed = Some((candidate, error));
                }
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some((_, error)) => Err(error),
            None => Err(Error::new(ErrorKind::InvalidUrl, "no store is named")),
        }
    }

    /// Returns the driver of `config` and its parsed keys, if all of them are known and valid.
    fn check<'a>(&self, config: &'a Config) -> Result<(&Arc<dyn Driver>, ParsedConfig<'a>), Error> {
        let about = |key| move |error| config.about(key, error);
        let driver = self.driver(config.url().scheme()).map_err(about("url"))?;
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
        let known: Vec<_> = self.schemes().map(|s| format!("{s}:")).collect();
        Err(Error::new(
            ErrorKind::UnknownScheme,
            format!(
                "no store answers to `{scheme}:`; there are {}",
                known.join(", ")
            ),
        ))
    }
}

fn build(parsed: ParsedConfig<'_>, provider: Arc<dyn LockProvider>) -> Result<LockKeeper, Error> {
    let mut builder = LockKeeper::builder(provider)
        .settings(parsed.settings)
        .clock(Arc::clone(&parsed.config.clock));
    for capability in parsed.required {
        builder = builder.require(capability);
    }
    if let Some(observer) = &parsed.config.observer {
        builder = builder.observer(Arc::clone(observer));
    }
    builder.build()
}

fn known_keys(driver: &dyn Driver) -> impl Iterator<Item = &'static str> {
    COMMON_KEYS.iter().chain(driver.keys()).map(|key| key.name)
}

/// Names the key and the nearest one that there is, never the value: it may be a secret.
fn unknown_key(key: &str, driver: &dyn Driver) -> Error {
    let known = || known_keys(driver);
    let nearest = known()
        .map(|known| (strsim::damerau_levenshtein(key, known), known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 3);
    let hint = match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => format!("there are {}", known().collect::<Vec<_>>().join(", ")),
    };
    Error::new(
        ErrorKind::UnknownKey,
        format!("unknown key `{key}`; {hint}"),
    )
}
