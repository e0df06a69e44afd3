//! One set of keys, from a URL, from the environment or from a config file.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::name::check_length;
use crate::observer::Observer;
use crate::options::{LeasePolicy, MAX_DURATION, Settings, Wait};
use crate::token::MAX_HANDOVERS;
use crate::url::StoreUrl;

/// One key of a URL, the environment or a config file, as documentation and error messages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The key.
    pub name: &'static str,
    /// The values that it takes.
    pub takes: &'static str,
    /// The value if the key is not given.
    pub default: &'static str,
    /// What it decides.
    pub meaning: &'static str,
}

impl KeySpec {
    /// Describes a key.
    pub const fn new(
        name: &'static str,
        takes: &'static str,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            takes,
            default,
            meaning,
        }
    }
}

/// The keys that every store takes; a backend adds its own with [`Driver::keys`](crate::Driver::keys).
pub const COMMON_KEYS: [KeySpec; 9] = [
    KeySpec::new(
        "namespace",
        "1 to 512 bytes",
        "default",
        "keeps applications apart on one store",
    ),
    KeySpec::new(
        "ttl",
        "a duration from 100ms",
        "30s",
        "how long a lock outlives the last renewal of its holder",
    ),
    KeySpec::new(
        "wait",
        "a duration, or forever",
        "10s",
        "how long an acquisition may block",
    ),
    KeySpec::new(
        "lease",
        "renewed or fixed",
        "renewed",
        "whether the keeper renews the lease",
    ),
    KeySpec::new(
        "margin",
        "a duration",
        "a tenth of the ttl, at most 1s",
        "how much earlier than the store a guard considers itself lost",
    ),
    KeySpec::new(
        "handover_max",
        "a number from 0 to 127",
        "100",
        "how many hand-overs in a row stay within the process",
    ),
    KeySpec::new(
        "handover_time",
        "a duration",
        "50ms",
        "how long a process may hand a lock on within itself",
    ),
    KeySpec::new(
        "require",
        "cross_process, cross_host, dead_owner_take_over or commit_proof; several with commas",
        "none",
        "what the store must promise",
    ),
    KeySpec::new(
        "fallback",
        "a URL; can be repeated",
        "none",
        "the store to open if the first one is unreachable",
    ),
];

/// Variables with the prefix `LOCKKEEPER_` that are not settings: the command's config file, and
/// what `lockkeeper run` passes to its child.
const NOT_SETTINGS: [&str; 4] = ["config", "name", "token", "deadline_unix_ms"];

/// A config whose common keys are parsed and checked.
#[derive(Clone, Debug)]
pub(crate) struct ParsedConfig<'a> {
    pub(crate) config: &'a Config,
    pub(crate) namespace: &'a str,
    pub(crate) required: Vec<Capability>,
    pub(crate) settings: Settings,
}

/// Which store, and how to lock on it.
///
/// [`COMMON_KEYS`] lists the keys that every store takes, with their values and defaults.
///
/// Durations are written `500ms`, `30s`, `2m`. Backends add keys of their own. An unknown key
/// is an error, and so is one that is given twice. In a URL keys are query parameters; in
/// the environment they are upper-case variables with a prefix; in a config file they are a table
/// with `url` (feature `serde`).
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
    observer: Option<Arc<dyn Observer>>,
    clock: Arc<dyn Clock>,
}

impl Config {
    /// The store and the keys of `url`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`], or [`ErrorKind::InvalidValue`] for a key that is given twice.
    /// Values are looked at on opening.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (url, pairs) = StoreUrl::parse(url)?;
        let mut config = Self {
            url,
            values: BTreeMap::new(),
            observer: None,
            clock: Arc::new(SystemClock),
        };
        for (key, value) in pairs {
            config.add(&key, value)?;
        }
        Ok(config)
    }

    /// The store from the variable `{prefix}_URL`, every other key from `{prefix}_{KEY}`.
    /// Several values of `require` or `fallback` are separated by white space. A variable that is
    /// empty counts as not set.
    ///
    /// # Errors
    /// As [`from_url`](Self::from_url), and when `{prefix}_URL` is not set.
    pub fn from_env(prefix: &str) -> Result<Self, Error> {
        Self::from_vars(prefix, std::env::vars_os())
    }

    fn from_vars(
        prefix: &str,
        vars: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    ) -> Result<Self, Error> {
        let start = format!("{prefix}_");
        let mut pairs = BTreeMap::new();
        for (name, value) in vars {
            let Some(key) = name.to_str().and_then(|name| name.strip_prefix(&start)) else {
                continue;
            };
            let key = key.to_ascii_lowercase();
            if value.is_empty() || NOT_SETTINGS.contains(&key.as_str()) {
                continue;
            }
            let value = value.into_string().map_err(|_| {
                Error::new(
                    ErrorKind::InvalidValue,
                    format!("the variable {start}{} is not UTF-8", key.to_uppercase()),
                )
            })?;
            pairs.insert(key, value);
        }
        let url = pairs.remove("url").ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidUrl,
                format!("{start}URL is not set; set it to the store's URL, such as sqlite:/var/lib/app/locks.db"),
            )
        })?;
        let mut config = Self::from_url(&url)?;
        for (key, value) in pairs {
            config = config.set(&key, &value)?;
        }
        Ok(config)
    }

    /// Adds a key that is not given yet. A list is given with white space or by several calls.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] when it is given already.
    pub fn set(mut self, key: &str, value: &str) -> Result<Self, Error> {
        if is_list(key) {
            for part in value.split_whitespace() {
                self.add(key, part.to_owned())?;
            }
        } else {
            self.add(key, value.to_owned())?;
        }
        Ok(self)
    }

    fn add(&mut self, key: &str, value: String) -> Result<(), Error> {
        let values = self.values.entry(key.to_owned()).or_default();
        if !values.is_empty() && !is_list(key) {
            return Err(given_twice(key));
        }
        values.push(value);
        Ok(())
    }

    /// Sets how long an acquisition may block.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        match wait {
            Wait::AtMost(time) => self.put_duration("wait", time),
            Wait::Forever => self.put("wait", "forever".to_owned()),
        }
    }

    /// Sets whether the keeper renews leases, and their ttl.
    #[must_use]
    pub fn lease(self, policy: LeasePolicy) -> Self {
        let (lease, ttl) = match policy {
            LeasePolicy::Renewed { ttl } => ("renewed", ttl),
            LeasePolicy::Fixed { ttl } => ("fixed", ttl),
        };
        self.put("lease", lease.to_owned()).put_duration("ttl", ttl)
    }

    /// Sets how long a lock outlives the last renewal of its holder.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.put_duration("ttl", ttl)
    }

    /// Sets how much earlier than the store a guard considers itself lost.
    #[must_use]
    pub fn margin(self, margin: Duration) -> Self {
        self.put_duration("margin", margin)
    }

    /// Sets the namespace, which keeps applications apart on one store.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.put("namespace", namespace.to_owned())
    }

    /// Refuses a store without `capability`.
    #[must_use]
    pub fn require(self, capability: Capability) -> Self {
        self.put("require", capability.to_string())
    }

    /// Adds a store to open if the stores before it are unreachable.
    #[must_use]
    pub fn fallback(self, url: &str) -> Self {
        self.put("fallback", url.to_owned())
    }

    fn put_duration(self, key: &str, time: Duration) -> Self {
        self.put(key, humantime::format_duration(time).to_string())
    }

    /// Adds a value that [`parse`](Self::parse) checks.
    fn put(mut self, key: &str, value: String) -> Self {
        self.values.entry(key.to_owned()).or_default().push(value);
        self
    }

    /// Leaves the fallbacks out, for operators' questions about the first store itself.
    #[must_use]
    pub fn without_fallbacks(mut self) -> Self {
        self.values.remove("fallback");
        self
    }

    /// Tells `observer` what happens, a fallback at opening included.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Counts deadlines on another clock; for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The store.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    pub(crate) fn the_observer(&self) -> Option<&Arc<dyn Observer>> {
        self.observer.as_ref()
    }

    pub(crate) fn the_clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.first().map(String::as_str)
    }

    /// The URLs to open when the first store is out of reach.
    pub(crate) fn fallbacks(&self) -> Result<Vec<Config>, Error> {
        let urls = self.values.get("fallback").map_or(&[][..], Vec::as_slice);
        let mut configs = Vec::new();
        for url in urls {
            let mut other = Self::from_url(url)?;
            for KeySpec { name: key, .. } in COMMON_KEYS {
                if other.values.contains_key(key) {
                    return Err(Error::new(
                        ErrorKind::InvalidValue,
                        format!(
                            "the fallback sets `{key}`; set it once, on the first store, for all of them"
                        ),
                    ));
                }
                if key != "fallback"
                    && let Some(values) = self.values.get(key)
                {
                    other.values.insert(key.to_owned(), values.clone());
                }
            }
            other.observer.clone_from(&self.observer);
            other.clock = Arc::clone(&self.clock);
            configs.push(other);
        }
        Ok(configs)
    }

    /// Parses and checks the common keys. Talks to no store.
    pub(crate) fn parse(&self) -> Result<ParsedConfig<'_>, Error> {
        for (key, values) in &self.values {
            if values.len() > 1 && !is_list(key) {
                return Err(given_twice(key));
            }
        }
        let namespace = self.get("namespace").unwrap_or("default");
        check_length("a namespace", namespace)?;
        let required = self.parse_required()?;
        let settings = Settings {
            lease: self.parse_lease()?,
            wait: self.parse_wait()?,
            margin: self.duration("margin")?,
            handover_max: self
                .number("handover_max", 0..=MAX_HANDOVERS)?
                .unwrap_or(LockKeeper::DEFAULT_HANDOVER_MAX),
            handover_time: self
                .duration("handover_time")?
                .unwrap_or(LockKeeper::DEFAULT_HANDOVER_TIME),
        };
        settings.lease.check(&Capabilities::new())?;
        settings.wait.check()?;
        Ok(ParsedConfig {
            config: self,
            namespace,
            required,
            settings,
        })
    }

    pub(crate) fn parse_key<T: FromStr>(&self, key: &str, takes: &str) -> Result<Option<T>, Error> {
        let parse = |text: &str| text.parse().map_err(|_| refused(key, takes, text));
        self.get(key).map(parse).transpose()
    }

    pub(crate) fn number<T>(&self, key: &str, range: RangeInclusive<T>) -> Result<Option<T>, Error>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let takes = format!("a whole number from {} to {}", range.start(), range.end());
        match self.parse_key(key, &takes)? {
            Some(number) if !range.contains(&number) => {
                Err(refused(key, &takes, &number.to_string()))
            }
            number => Ok(number),
        }
    }

    pub(crate) fn duration(&self, key: &str) -> Result<Option<Duration>, Error> {
        let text = self.get(key);
        match duration(text, key, ErrorKind::InvalidValue)? {
            Some(time) if time > MAX_DURATION => Err(refused(
                key,
                "a duration of at most a hundred years",
                text.unwrap_or_default(),
            )),
            time => Ok(time),
        }
    }

    fn parse_required(&self) -> Result<Vec<Capability>, Error> {
        let values = self.values.get("require").map_or(&[][..], Vec::as_slice);
        values
            .iter()
            .flat_map(|value| value.split(','))
            .map(|name| name.trim().parse())
            .collect()
    }

    fn parse_lease(&self) -> Result<LeasePolicy, Error> {
        let ttl = duration(self.get("ttl"), "ttl", ErrorKind::InvalidTtl)?;
        let ttl = ttl.unwrap_or(LockKeeper::DEFAULT_TTL);
        match self.get("lease") {
            None | Some("renewed") => Ok(LeasePolicy::Renewed { ttl }),
            Some("fixed") => Ok(LeasePolicy::Fixed { ttl }),
            Some(other) => Err(Error::new(
                ErrorKind::InvalidValue,
                format!("`lease` does not know {other:?}; it takes renewed or fixed"),
            )),
        }
    }

    fn parse_wait(&self) -> Result<Wait, Error> {
        if self.get("wait") == Some("forever") {
            return Ok(Wait::Forever);
        }
        let wait = duration(self.get("wait"), "wait", ErrorKind::InvalidWait)?;
        Ok(Wait::AtMost(wait.unwrap_or(LockKeeper::DEFAULT_WAIT)))
    }
}

fn given_twice(key: &str) -> Error {
    Error::new(
        ErrorKind::InvalidValue,
        format!("`{key}` is given twice; say it once"),
    )
}

fn is_list(key: &str) -> bool {
    matches!(key, "require" | "fallback")
}

fn refused(key: &str, takes: &str, given: &str) -> Error {
    Error::new(
        ErrorKind::InvalidValue,
        format!("`{key}` takes {takes}, and not {given:?}"),
    )
}

fn duration(text: Option<&str>, key: &str, kind: ErrorKind) -> Result<Option<Duration>, Error> {
    text.map(|text| {
        humantime::parse_duration(text).map_err(|error| {
            let forever = if key == "wait" { ", or forever" } else { "" };
            Error::new(
                kind,
                format!("`{key}={text}` is not a duration that can be kept; write it like 500ms, 30s or 2m{forever}"),
            )
            .with_source(error)
        })
    })
    .transpose()
}

/// Debug shows the keys and no values but the store's place: a value may be a secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.url)
            .field("keys", &self.values.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Config {
    /// A table with `url` and the keys; values are strings, whole numbers, booleans or lists of
    /// strings.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;

        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Value {
            Text(String),
            Number(i64),
            Flag(bool),
            List(Vec<String>),
            Other(serde::de::IgnoredAny),
        }

        let mut table = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let Some(Value::Text(url)) = table.remove("url") else {
            return Err(D::Error::custom(
                "the table needs `url = \"…\"`, the store's URL",
            ));
        };
        let mut config = Config::from_url(&url).map_err(D::Error::custom)?;
        for (key, value) in table {
            let values = match value {
                Value::Text(text) => vec![text],
                Value::Number(number) => vec![number.to_string()],
                Value::Flag(flag) => vec![flag.to_string()],
                Value::List(list) => list,
                Value::Other(serde::de::IgnoredAny) => {
                    return Err(D::Error::custom(format!(
                        "`{key}` takes a string, a whole number, true or false, or a list of strings"
                    )));
                }
            };
            if values.is_empty() && !is_list(&key) {
                return Err(D::Error::custom(format!(
                    "`{key}` has an empty list for a value; give it one, or leave the key out"
                )));
            }
            for value in values {
                config.add(&key, value).map_err(D::Error::custom)?;
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn vars(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn the_environment_has_the_same_keys() {
        let env = vars(&[
            ("APP_URL", "memory:"),
            ("APP_TTL", "5s"),
            ("APP_REQUIRE", "cross_process cross_host"),
            ("APP_TOKEN", "7"),
            ("APP_NAMESPACE", ""),
            ("OTHER", "x"),
        ]);
        let config = Config::from_vars("APP", env.into_iter()).unwrap();
        assert_eq!(
            config.parse().unwrap().settings.lease.ttl(),
            Duration::from_secs(5)
        );
        assert_eq!(config.parse().unwrap().required.len(), 2);
        assert_eq!(config.keys().collect::<Vec<_>>(), ["require", "ttl"]);

        for env in [vars(&[("APP_TTL", "5s")]), vars(&[("APP_URL", "")])] {
            let error = Config::from_vars("APP", env.into_iter()).unwrap_err();
            assert!(error.to_string().contains("APP_URL is not set"));
        }
    }

    #[test]
    fn a_key_given_twice_is_an_error_wherever_it_comes_from() {
        let env = vars(&[("APP_URL", "memory:?ttl=1s"), ("APP_TTL", "5s")]);
        let error = Config::from_vars("APP", env.into_iter()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
    }

    #[test]
    fn typed_settings_are_the_keys_of_a_url() {
        let ttl = Duration::from_millis(1_500);
        let config = Config::from_url("memory:").unwrap();
        let config = config
            .lease(LeasePolicy::Fixed { ttl })
            .wait(Wait::Forever)
            .margin(Duration::from_millis(7))
            .namespace("shop")
            .require(Capability::CrossHost);
        let parsed = config.parse().unwrap();
        assert_eq!(parsed.settings.lease, LeasePolicy::Fixed { ttl });
        assert_eq!(parsed.settings.wait, Wait::Forever);
        assert_eq!(parsed.settings.margin, Some(Duration::from_millis(7)));
        assert_eq!(parsed.namespace, "shop");
        assert_eq!(parsed.required, [Capability::CrossHost]);
        let twice = Config::from_url("memory:?ttl=1s").unwrap().ttl(ttl);
        let error = twice.parse().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
    }

    #[test]
    fn bad_values_have_a_kind_of_their_own_and_a_way_out() {
        let kind = |url: &str| {
            let config = Config::from_url(url)?;
            config.parse().map(drop)
        };
        for (url, expected) in [
            ("not a url", ErrorKind::InvalidUrl),
            ("memory:#x", ErrorKind::InvalidUrl),
            ("memory:?ttl=soon", ErrorKind::InvalidTtl),
            ("memory:?ttl=-1s", ErrorKind::InvalidTtl),
            ("memory:?wait=99999999999999999999y", ErrorKind::InvalidWait),
            ("memory:?lease=eternal", ErrorKind::InvalidValue),
            ("memory:?namespace=", ErrorKind::InvalidName),
            ("memory:?require=magic", ErrorKind::InvalidValue),
        ] {
            assert_eq!(kind(url).unwrap_err().kind(), expected, "{url}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_table_has_the_same_keys() {
        let text =
            r#"{"url": "memory:", "ttl": "5s", "handover_max": 3, "require": ["cross_host"]}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        assert_eq!(config.get("handover_max"), Some("3"));
        assert_eq!(config.parse().unwrap().required, [Capability::CrossHost]);
        let text = r#"{"url": "memory:", "require": [], "fallback": []}"#;
        assert!(serde_json::from_str::<Config>(text).is_ok());
        for (text, says) in [
            (r#"{"ttl": "5s"}"#, "url"),
            (r#"{"url": "memory:", "ttl": 0.5}"#, "`ttl` takes"),
            (r#"{"url": "memory:", "shop": {}}"#, "`shop` takes"),
            (
                r#"{"url": "memory:", "shop": []}"#,
                "`shop` has an empty list",
            ),
            (
                r#"{"url": "memory:", "ttl": []}"#,
                "`ttl` has an empty list",
            ),
        ] {
            let error = serde_json::from_str::<Config>(text).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
