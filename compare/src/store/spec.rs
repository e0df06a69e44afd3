//! The stores that a comparison is to use.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use lockkeeper::Config;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;

/// A store to compare on: its URL and further settings, and where they come from.
///
/// Its `Debug` shows no values, since there may be a password among them.
#[derive(Clone)]
pub struct StoreSpec {
    pub(crate) origin: String,
    pub(crate) settings: StoreSettings,
}

/// What opens a store. Only a holder's process gets it, since there may be a password in it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoreSettings {
    /// A URL, and further keys.
    keys: Map<String, Value>,
    /// Ports of the members, if they are Redis servers on this machine.
    pub(crate) member_ports: Vec<u16>,
    /// The names of the tables and keys beside the locks begin with it; no other run has the same.
    pub(crate) state: String,
}

impl StoreSpec {
    /// Specifies a store by its URL, such as `sqlite:/var/lib/app/locks.db`.
    pub fn url(url: &str) -> Self {
        let keys = Map::from_iter([("url".to_owned(), Value::from(url))]);
        Self::new("a URL", keys)
    }

    /// Specifies a store by a table of a config file, in any of `serde`'s formats: a `url`, and
    /// further keys.
    ///
    /// # Errors
    /// If `table` is not a table.
    pub fn table(table: impl Serialize) -> Result<Self, Error> {
        let Ok(Value::Object(keys)) = serde_json::to_value(table) else {
            return Err(Error::invalid(
                "a store is a table with a `url`, and this is none",
            ));
        };
        Ok(Self::new("a table", keys))
    }

    fn new(origin: &str, keys: Map<String, Value>) -> Self {
        Self {
            origin: origin.to_owned(),
            settings: StoreSettings {
                keys,
                member_ports: Vec::new(),
                state: String::new(),
            },
        }
    }

    /// Specifies the quorum of the Redis servers on these ports of this machine, with this `restart_grace`.
    pub(crate) fn quorum(ports: Vec<u16>, restart_grace: Duration) -> Self {
        let members = ports
            .iter()
            .map(|port| format!("member=redis://127.0.0.1:{port}"));
        let members: Vec<_> = members.collect();
        let grace = restart_grace.as_millis();
        let url = format!("quorum:?{}&restart_grace={grace}ms", members.join("&"));
        let mut spec = Self::url(&url);
        spec.settings.member_ports = ports;
        spec
    }

    /// Sets where the store comes from, for error messages: `--url 2`.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = origin.into();
        self
    }

    /// Specifies the embedded stores: `memory:`, and a file in `folder`.
    pub(crate) fn embedded(folder: &Path) -> Result<[Self; 2], Error> {
        let sqlite = sqlite_url(&folder.join("locks.db"))?;
        Ok(["memory:", &sqlite].map(|url| Self::url(url).origin("the embedded stores")))
    }

    /// Names a `memory:` without a name. Without one, each keeper that opens it gets a store of its
    /// own, and no two of them would contend.
    pub(crate) fn with_memory_name(mut self, number: usize) -> Self {
        if let Some(Value::String(url)) = self.settings.keys.get_mut("url")
            && let Some(query) = url.strip_prefix("memory:")
            && (query.is_empty() || query.starts_with('?'))
        {
            *url = format!("memory:lockkeeper-compare-{number}{query}");
        }
        self
    }
}

impl StoreSettings {
    pub(crate) fn config(&self) -> Result<Config, Error> {
        match (self.keys.get("url"), self.keys.len()) {
            // This error says more than that of the table.
            (Some(Value::String(url)), 1) => Ok(Config::from_url(url)?),
            _ => serde_json::from_value(Value::Object(self.keys.clone()))
                .map_err(|error| Error::invalid(error.to_string())),
        }
    }
}

impl fmt::Debug for StoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSpec")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

fn sqlite_url(file: &Path) -> Result<String, Error> {
    let path = file.to_str().ok_or_else(|| {
        Error::failed(format!(
            "the folder for temporary files, {}, is not UTF-8; set TMPDIR to another one",
            file.display()
        ))
    })?;
    let escaped = path
        .replace('%', "%25")
        .replace('?', "%3F")
        .replace('#', "%23");
    Ok(format!("sqlite:{escaped}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_url_escapes_special_characters() {
        let file = Path::new("/tmp/50% off? #1 가게/locks.db");
        let config = Config::from_url(&sqlite_url(file).unwrap()).unwrap();
        assert_eq!(Path::new(config.url().path()), file);
    }

    #[test]
    fn debug_shows_no_settings() {
        let spec = StoreSpec::url("redis://:s3cret@host");
        assert!(!format!("{spec:?}").contains("s3cret"));
    }
}
