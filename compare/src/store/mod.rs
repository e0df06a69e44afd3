//! The stores to lock on, each with the state that the locks protect.

pub(crate) mod client;
pub(crate) mod data;
pub(crate) mod memory;
pub(crate) mod mysql;
pub(crate) mod redis;
pub(crate) mod sqlite;
pub(crate) mod state;

use std::path::Path;

use lockkeeper::Config;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::client::Door;
use self::data::Data;
use crate::error::Failure;
use crate::meter::Counter;

/// Where a store's settings come from: a URL, or a table of a config file. To be handed on to
/// another process, which a [`Config`] cannot be. There may be a password in it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Source(Map<String, Value>);

impl Source {
    /// A URL and nothing else.
    pub(crate) fn url(url: &str) -> Self {
        Self::from(Map::from_iter([("url".to_owned(), Value::from(url))]))
    }

    fn config(&self) -> Result<Config, Failure> {
        match (self.0.get("url"), self.0.len()) {
            // Says more about what is wrong than the table does.
            (Some(Value::String(url)), 1) => Ok(Config::from_url(url)?),
            _ => serde_json::from_value(Value::Object(self.0.clone()))
                .map_err(|error| Failure::Usage(error.to_string())),
        }
    }

    /// A nameless `memory:` is another store each time it is opened; with a name, two keepers
    /// meet.
    fn with_a_meeting_place(mut self, number: usize) -> Self {
        if let Some(Value::String(url)) = self.0.get_mut("url")
            && let Some(query) = url.strip_prefix("memory:")
            && (query.is_empty() || query.starts_with('?'))
        {
            *url = format!("memory:lockkeeper-compare-{number}{query}");
        }
        self
    }
}

impl From<Map<String, Value>> for Source {
    fn from(table: Map<String, Value>) -> Self {
        Self(table)
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How to get to a store, for a program of the scenario.
#[derive(Debug)]
pub(crate) struct Reach {
    source: Source,
    config: Config,
    door: Door,
    /// The servers that `redlock` needs beside it; none where it cannot be run.
    redlock: Vec<redis::Door>,
    ports: Vec<u16>,
}

impl Reach {
    /// Looks whether the store can be opened.
    pub(crate) fn open(source: Source, ports: Vec<u16>) -> Result<Self, Failure> {
        let config = source.config()?;
        let shown = format!("`{}`", config.url());
        let door = Door::find(&config).map_err(|failure| failure.about(&shown))?;
        let beside = ports.iter().map(|&port| redis::Door::local(port));
        Ok(Self {
            redlock: beside.collect::<Result<_, Failure>>()?,
            ports,
            source,
            config,
            door,
        })
    }

    /// Where it comes from.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// What this library opens.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Where it is for others.
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// The servers beside it.
    pub(crate) fn redlock(&self) -> &[redis::Door] {
        &self.redlock
    }

    /// Their ports.
    pub(crate) fn redlock_ports(&self) -> &[u16] {
        &self.ports
    }
}

/// A store that could be opened, and the state beside its locks.
#[derive(Debug)]
pub(crate) struct Store {
    label: String,
    reach: Reach,
    data: Data,
}

impl Store {
    /// Opens them all. What they need on disk beside that is in `folder`.
    pub(crate) fn open_all(wanted: Vec<Wanted>, folder: &Path) -> Result<Vec<Self>, Failure> {
        let mut stores: Vec<Self> = Vec::new();
        for (number, wanted) in wanted.into_iter().enumerate() {
            let source = wanted.source.with_a_meeting_place(number);
            // What cannot be parsed is not shown: there may be a password in it.
            let reach = Reach::open(source, wanted.redlock)
                .map_err(|failure| failure.about(&wanted.from))?;
            let kind = reach.door().label();
            let same = stores
                .iter()
                .filter(|other| other.reach.door().label() == kind);
            let label = match same.count() {
                0 => kind.to_owned(),
                before => format!("{kind}-{}", before + 1),
            };
            let data = Data::create(reach.door(), folder, number);
            stores.push(Self {
                data: data.map_err(|failure| failure.about(&label))?,
                label,
                reach,
            });
        }
        Ok(stores)
    }

    /// Its name in the table: the backend's, numbered where there are several of a kind.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// How to get there.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The state beside the locks.
    pub(crate) fn data(&self) -> &Data {
        &self.data
    }

    /// What counts the commands that are named so, each on a connection of its own.
    pub(crate) fn counters<'a>(
        &'a self,
        commands: &'static [&'static str],
    ) -> Result<Vec<Box<dyn Counter + 'a>>, Failure> {
        let mut counters: Vec<_> = self
            .data
            .counter(&self.reach.door, commands)?
            .into_iter()
            .collect();
        for door in self.reach.redlock() {
            counters.push(Box::new(redis::Stats::open(door, commands, None)?));
        }
        Ok(counters)
    }
}

/// A store that was asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where it was asked for, for messages: `--url 2`.
    pub(crate) from: String,
    /// How to open it.
    pub(crate) source: Source,
    /// The ports of the servers that `redlock` may use beside it.
    pub(crate) redlock: Vec<u16>,
}

impl Wanted {
    /// Names a store by its URL, such as `sqlite:/tmp/locks.db`.
    pub fn url(url: &str) -> Self {
        Self {
            from: "a URL".to_owned(),
            source: Source::url(url),
            redlock: Vec::new(),
        }
    }

    /// Names a store by a table of a config file, in any of `serde`'s formats: a `url`, and further
    /// keys.
    ///
    /// # Errors
    /// If `table` is no table.
    pub fn table(table: impl Serialize) -> Result<Self, Failure> {
        let Ok(Value::Object(table)) = serde_json::to_value(table) else {
            let text = "a store is a table with a `url`, and this is none";
            return Err(Failure::Usage(text.to_owned()));
        };
        Ok(Self {
            from: "a table".to_owned(),
            source: Source::from(table),
            redlock: Vec::new(),
        })
    }

    /// Says where the store comes from, for messages: `--url 2`.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.from = origin.into();
        self
    }

    /// The embedded ones, which need nothing: `memory:`, and a file in `folder`.
    pub(crate) fn embedded(folder: &Path) -> Result<[Self; 2], Failure> {
        Ok(
            ["memory:".to_owned(), throw_away_url(folder)?].map(|url| Self {
                from: "the stores without --url".to_owned(),
                source: Source::url(&url),
                redlock: Vec::new(),
            }),
        )
    }
}

/// The URL of a SQLite file in `folder`.
fn throw_away_url(folder: &Path) -> Result<String, Failure> {
    let file = folder.join("locks.db");
    let path = file.to_str().ok_or_else(|| {
        Failure::Failed(format!(
            "the folder for temporary files, {}, is not UTF-8; set TMPDIR to another one",
            folder.display()
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
    fn a_path_with_odd_letters_is_found_again() {
        let folder = Path::new("/tmp/50% off? #1 가게");
        let config = Config::from_url(&throw_away_url(folder).unwrap()).unwrap();
        assert_eq!(
            config.url().path().unwrap(),
            "/tmp/50% off? #1 가게/locks.db"
        );
    }

    #[test]
    fn stores_of_one_kind_are_numbered() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = ["memory:?ttl=1s", "memory:", "memory:mine"].map(|url| Wanted {
            from: String::new(),
            source: Source::url(url),
            redlock: Vec::new(),
        });
        let stores = Store::open_all(wanted.into(), folder.path()).unwrap();
        let labels: Vec<_> = stores.iter().map(Store::label).collect();
        assert_eq!(labels, ["memory", "memory-2", "memory-3"]);
    }
}
