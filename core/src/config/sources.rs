//! A config from the environment, and from a table of a config file.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::{Config, given_twice, in_variable};
use crate::error::{Error, ErrorKind};

/// Variables with the prefix `LOCKKEEPER_` that are not settings: the command's config file, and
/// what `lockkeeper run` passes to its child. No key of a store has such a name.
const NOT_SETTINGS: [&str; 6] = [
    "config",
    "name",
    "token",
    "tokens",
    "slot",
    "deadline_unix_ms",
];

impl Config {
    /// The store from the variable `{prefix}_URL`, every other key from `{prefix}_{KEY}`.
    /// Several values of `require` or `fallback` are separated by white space.
    ///
    /// A variable that is empty counts as not set. So does one that Kubernetes sets by itself for a service whose name
    /// begins with the prefix, such as `{prefix}_SERVICE_HOST` or `{prefix}_REDIS_PORT`. Two variables that differ in
    /// upper and lower case alone give a key twice, which is an error. An error about a variable names it.
    ///
    /// # Errors
    /// As [`from_url`](Self::from_url), and if `{prefix}_URL` is not set.
    pub fn from_env(prefix: &str) -> Result<Self, Error> {
        Self::from_vars(prefix, std::env::vars_os())
    }

    /// Returns the variables from which [`from_env`](Self::from_env) would take a key, without `{prefix}_URL`. In a
    /// program that has its URL from elsewhere, they have no effect, so it can warn of them.
    pub fn keys_in_env(prefix: &str) -> Vec<String> {
        let settings = settings(prefix, std::env::vars_os());
        let keys = settings.filter(|(_, key, _)| key != "url");
        let mut names: Vec<_> = keys.map(|(variable, ..)| variable).collect();
        names.sort_unstable();
        names
    }

    fn from_vars(
        prefix: &str,
        vars: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let mut pairs = BTreeMap::new();
        for (variable, key, value) in settings(prefix, vars) {
            let value = value.into_string().map_err(|_| {
                Error::new(
                    ErrorKind::InvalidValue,
                    format!("the variable {variable} is not UTF-8"),
                )
            })?;
            if let Some((other, _)) = pairs.get(&key) {
                let both = format!("{other} and {variable}");
                return Err(in_variable(&both, &given_twice(&key)));
            }
            pairs.insert(key, (variable, value));
        }
        let (variable, url) = pairs.remove("url").ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidUrl,
                format!("{prefix}_URL is not set; set it to the store's URL, such as sqlite:/var/lib/app/locks.db"),
            )
        })?;
        let mut config = Self::from_url(&url).map_err(|error| in_variable(&variable, &error))?;
        config.is_from(&variable);
        for (key, (variable, value)) in pairs {
            let set = config.set(&key, &value);
            config = set.map_err(|error| in_variable(&variable, &error))?;
            config.variables.insert(key, variable);
        }
        Ok(config)
    }

    /// Remembers that the URL and all keys so far are from this variable.
    pub(super) fn is_from(&mut self, variable: &str) {
        for key in self.values.keys().map(String::as_str).chain(["url"]) {
            self.variables.insert(key.to_owned(), variable.to_owned());
        }
    }
}

/// Returns the variables that are settings, each with its key and its value.
fn settings(
    prefix: &str,
    vars: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, String, OsString)> {
    let start = format!("{prefix}_");
    vars.filter_map(move |(name, value)| {
        let variable = name.into_string().ok()?;
        let key = variable.strip_prefix(&start)?.to_ascii_lowercase();
        let is_setting =
            !value.is_empty() && !NOT_SETTINGS.contains(&key.as_str()) && !is_service_link(&key);
        is_setting.then_some((variable, key, value))
    })
}

/// Returns whether Kubernetes sets a variable of this name by itself. It does so for each service that is named
/// like the prefix or begins with it. For a service of the prefix's name: `_SERVICE_HOST`, `_SERVICE_PORT…`,
/// `_PORT` and `_PORT_6379_TCP…`; for a longer name: `_REDIS_SERVICE_HOST` and so on. See
/// <https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>.
fn is_service_link(key: &str) -> bool {
    let key = format!("_{key}_");
    ["_service_host_", "_service_port_", "_port_"]
        .iter()
        .any(|part| key.contains(part))
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
            if values.is_empty() && !super::keys::is_list(&key) {
                return Err(D::Error::custom(format!(
                    "`{key}` has an empty list for a value; give it one, or leave the key out"
                )));
            }
            for value in values {
                config = config.add(&key, value).map_err(D::Error::custom)?;
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::driver::Drivers;

    fn from_vars(vars: &[(&str, &str)]) -> Result<Config, Error> {
        let vars = vars.iter().map(|(name, value)| (name.into(), value.into()));
        Config::from_vars("APP", vars)
    }

    #[test]
    fn the_environment_has_the_same_keys() {
        let config = from_vars(&[
            ("APP_URL", "memory:"),
            ("APP_TTL", "5s"),
            ("APP_REQUIRE", "cross_process cross_host"),
            ("APP_TOKEN", "7"),
            ("APP_NAMESPACE", ""),
            ("APP_ttl", ""),
            ("OTHER", "x"),
        ])
        .unwrap();
        let parsed = config.parse().unwrap();
        assert_eq!(parsed.settings.lease.ttl().as_secs(), 5);
        assert_eq!(parsed.required.len(), 2);
        assert_eq!(config.keys().collect::<Vec<_>>(), ["require", "ttl"]);
        let open = |vars: &[_]| {
            let config = from_vars(vars)?;
            config
                .fallbacks()
                .and(Drivers::new().open(&config))
                .map(drop)
        };
        let (url, ttl) = (("APP_URL", "memory:"), ("APP_TTL", "5s"));
        for (vars, says) in [
            (&[ttl][..], "APP_URL is not set"),
            (&[("APP_URL", "")], "APP_URL is not set"),
            (&[("APP_URL", "memory")], "(variable APP_URL)"),
            (
                &[("APP_URL", "memory:?ttl=1s"), ttl],
                "`ttl` is given twice; say it once (variable APP_TTL)",
            ),
            (
                &[url, ttl, ("APP_ttl", "7s")],
                "`ttl` is given twice; say it once (variable APP_TTL and APP_ttl)",
            ),
            (
                &[("APP_Url", "memory:"), url],
                "`url` is given twice; say it once (variable APP_Url and APP_URL)",
            ),
            (&[("APP_URL", "nope:")], "(variable APP_URL)"),
            (&[url, ("APP_FALLBACK", "nope")], "(variable APP_FALLBACK)"),
            (&[url, ("APP_FALLBACK", " ")], "(variable APP_FALLBACK)"),
            (
                &[url, ("APP_FALLBACK", "nope:?ttl=1s")],
                "(variable APP_FALLBACK)",
            ),
        ] {
            let error = open(vars).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        for (variable, value) in [
            ("APP_TTL", "soon"),
            ("APP_TTL", "99ms"),
            ("APP_WAIT", "soon"),
            ("APP_WAIT", "1000years"),
            ("APP_LEASE", "eternal"),
            ("APP_HANDOVER_MAX", "128"),
            ("APP_NAMESPACE", &"x".repeat(513)),
            ("APP_REQUIRE", "magic"),
            ("APP_REQUIRE", " "),
        ] {
            let error = from_vars(&[url, (variable, value)])
                .unwrap()
                .parse()
                .unwrap_err();
            let named = format!("(variable {variable})");
            assert!(error.to_string().ends_with(&named), "{error}");
        }
    }

    #[test]
    fn service_links_of_kubernetes_are_no_keys() {
        let config = from_vars(&[
            ("APP_URL", "memory:"),
            ("APP_SERVICE_HOST", "10.0.0.1"),
            ("APP_SERVICE_PORT", "6379"),
            ("APP_SERVICE_PORT_REDIS", "6379"),
            ("APP_PORT", "tcp://10.0.0.1:6379"),
            ("APP_PORT_6379_TCP", "tcp://10.0.0.1:6379"),
            ("APP_PORT_6379_TCP_ADDR", "10.0.0.1"),
            ("APP_REDIS_SERVICE_HOST", "10.0.0.2"),
            ("APP_REDIS_SERVICE_PORT_DB", "6379"),
            ("APP_REDIS_PORT", "tcp://10.0.0.2:6379"),
            ("APP_REDIS_PORT_6379_TCP_PROTO", "tcp"),
            ("APP_PORTS", "7"),
        ]);
        assert_eq!(config.unwrap().keys().collect::<Vec<_>>(), ["ports"]);
    }
}
