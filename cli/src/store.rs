//! The stores to lock on, each with the state that the locks protect.

use std::path::Path;

use lockkeeper::Config;

use crate::failure::Failure;
use crate::state::{self, State};

/// A store that could be opened.
#[derive(Debug)]
pub(crate) struct Store {
    label: String,
    config: Config,
    state: Box<dyn State>,
}

impl Store {
    /// Opens the stores of `urls`, or the default ones where there are none. What they need on
    /// disk beside that is in `folder`.
    pub(crate) fn open_all(urls: &[String], folder: &Path) -> Result<Vec<Self>, Failure> {
        let defaults = ["memory:".to_owned(), throw_away_url(folder)?];
        let urls = if urls.is_empty() { &defaults[..] } else { urls };
        let mut stores = Vec::new();
        for url in urls {
            stores.push(Self::open(url, folder, &stores)?);
        }
        Ok(stores)
    }

    fn open(url: &str, folder: &Path, before: &[Self]) -> Result<Self, Failure> {
        // What cannot be parsed is not shown: there may be a password in it.
        let config = Config::from_url(&meeting_place(url, before.len()))
            .map_err(|error| Failure::from(error).about(&format!("--url {}", before.len() + 1)))?;
        let shown = format!("`{}`", config.url());
        let (backend, state) = state::beside(&config, folder, before.len())
            .map_err(|failure| failure.about(&shown))?;
        let same = before.iter().filter(|other| other.is(backend)).count();
        Ok(Self {
            label: match same {
                0 => backend.to_owned(),
                _ => format!("{backend}-{}", same + 1),
            },
            config,
            state,
        })
    }

    fn is(&self, backend: &str) -> bool {
        let rest = self.label.strip_prefix(backend);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Its name in the table: the backend's, numbered where there are several of a kind.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// What to open it with.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The state beside the locks.
    pub(crate) fn state(&self) -> &dyn State {
        self.state.as_ref()
    }
}

/// A nameless `memory:` is another store each time it is opened; with a name, two keepers meet.
fn meeting_place(url: &str, number: usize) -> String {
    match url.strip_prefix("memory:") {
        Some(query) if query.is_empty() || query.starts_with('?') => {
            format!("memory:lockkeeper-compare-{number}{query}")
        }
        _ => url.to_owned(),
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
        let urls = ["memory:?ttl=1s", "memory:", "memory:mine"].map(str::to_owned);
        let stores = Store::open_all(&urls, folder.path()).unwrap();
        let labels: Vec<_> = stores.iter().map(Store::label).collect();
        assert_eq!(labels, ["memory", "memory-2", "memory-3"]);
    }
}
