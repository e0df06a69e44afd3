//! A config from the environment, and from a table of a config file.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::Config;
use crate::error::{Error, ErrorKind};

/// Variables with the prefix `LOCKKEEPER_` that are not settings: the command's config file, and
/// what `lockkeeper run` passes to its child.
const NOT_SETTINGS: [&str; 4] = ["config", "name", "token", "deadline_unix_ms"];

impl Config {
    /// The store from the variable `{prefix}_URL`, every other key from `{prefix}_{KEY}`.
    /// Several values of `require` or `fallback` are separated by white space. A variable that is
    /// empty counts as not set.
    ///
    /// # Errors
    /// As [`from_url`](Self::from_url), and if `{prefix}_URL` is not set.
    pub fn from_env(prefix: &str) -> Result<Self, Error> {
        Self::from_vars(prefix, std::env::vars_os())
    }

    fn from_vars(
        prefix: &str,
        vars: impl Iterator<Item = (OsString, OsString)>,
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
        let mut pairs = pairs.iter();
        pairs.try_fold(Self::from_url(&url)?, |config, (key, value)| {
            config.set(key, value)
        })
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
            ("OTHER", "x"),
        ])
        .unwrap();
        let parsed = config.parse().unwrap();
        assert_eq!(parsed.settings.lease.ttl().as_secs(), 5);
        assert_eq!(parsed.required.len(), 2);
        assert_eq!(config.keys().collect::<Vec<_>>(), ["require", "ttl"]);
        for (vars, says) in [
            (&[("APP_TTL", "5s")][..], "APP_URL is not set"),
            (&[("APP_URL", "")], "APP_URL is not set"),
            (
                &[("APP_URL", "memory:?ttl=1s"), ("APP_TTL", "5s")],
                "`ttl` is given twice",
            ),
        ] {
            let error = from_vars(vars).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
