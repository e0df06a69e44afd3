//! Stores in a config file, which may belong to another program.

use std::path::{Path, PathBuf};

use lockkeeper::Config;
use toml::{Table, Value};

use crate::failure::{CONFIG, Failure};

/// A config file, and which of its stores is meant: `FILE` or `FILE:TABLE`.
///
/// A store is the file itself, or any table in it, that has a `url`; its other keys are the settings.
pub(crate) struct ConfigFile {
    path: PathBuf,
    table: Option<String>,
}

/// A store in a config file.
pub(crate) struct StoreTable {
    /// The table's name, such as `shop.locks`; empty for the file itself.
    name: String,
    pub(crate) table: Table,
}

impl ConfigFile {
    /// Splits `FILE:TABLE` at the last colon, if FILE is a file and the whole is none.
    pub(crate) fn new(given: &Path) -> Self {
        let split = given.to_str().and_then(|text| text.rsplit_once(':'));
        let is_table = |(path, _): &(&str, &str)| !given.exists() && Path::new(path).exists();
        let (path, table) = match split.filter(is_table) {
            Some((path, table)) => (path.into(), Some(table.to_owned())),
            None => (given.to_owned(), None),
        };
        Self { path, table }
    }

    /// Returns the settings of the only store, and where they are.
    pub(super) fn config(&self) -> Result<(Config, String), Failure> {
        let stores = self.stores()?;
        let [store] = stores.as_slice() else {
            let (file, names) = (self.path.display(), names(&stores));
            let last = stores.last().map_or("", |store| &store.name);
            return Err(self.unusable(&format!(
                "it has several stores: {names}; name one as FILE:TABLE, such as {file}:{last}"
            )));
        };
        let why = |text: &str| match store.name.as_str() {
            "" => text.to_owned(),
            _ => format!("{}: {text}", store.shown()),
        };
        if let Some((key, _)) = store.table.iter().find(|(_, value)| has_table(value)) {
            let text = format!(
                "`{key}` is a table, and beside a `url` there are only the keys of its store; write \
                 the `url` and its keys to a table of their own, such as [locks]"
            );
            return Err(self.unusable(&why(&text)));
        }
        let config = store.table.clone().try_into();
        let config =
            config.map_err(|error: toml::de::Error| self.unusable(&why(error.message())))?;
        let origin = match store.name.as_str() {
            "" => format!("config file {}", self.path.display()),
            _ => format!("{} of config file {}", store.shown(), self.path.display()),
        };
        Ok((config, origin))
    }

    /// Returns the stores of the file, or the one that is named. There is at least one.
    pub(crate) fn stores(&self) -> Result<Vec<StoreTable>, Failure> {
        let mut stores = Vec::new();
        collect("", Value::Table(self.read()?), &mut stores);
        if stores.is_empty() {
            let why =
                "it names no store; write `url = \"…\"` to it, or to a table in it such as [locks]";
            return Err(self.unusable(why));
        }
        let Some(table) = &self.table else {
            return Ok(stores);
        };
        let found = stores.iter().position(|store| store.name == *table);
        match found {
            Some(index) => Ok(vec![stores.swap_remove(index)]),
            None => Err(self.unusable(&format!(
                "it has no table [{table}] with a `url`; its stores are {}",
                names(&stores)
            ))),
        }
    }

    fn read(&self) -> Result<Table, Failure> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| {
            let way_out = "make it readable, correct HOME, or name another with --config";
            self.unusable(&format!("{error}; {way_out}"))
        })?;
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let before = before.unwrap_or_default();
            let (line, start) = (
                before.matches('\n').count() + 1,
                before.rfind('\n').map_or(0, |end| end + 1),
            );
            let column = before.get(start..).unwrap_or_default().chars().count() + 1;
            // Only the message: the error's own text shows the line, which may have a password in it.
            let message = error.message();
            self.unusable(&format!("line {line}, column {column}: {message}"))
        })
    }

    fn unusable(&self, why: &str) -> Failure {
        let file = self.path.display();
        let text = format!("the config file {file} cannot be used: {why}");
        Failure::new(CONFIG, text)
    }
}

impl StoreTable {
    /// Returns the name for messages.
    pub(crate) fn shown(&self) -> String {
        match self.name.as_str() {
            "" => "the file itself".to_owned(),
            name => format!("[{name}]"),
        }
    }
}

fn names(stores: &[StoreTable]) -> String {
    let names: Vec<_> = stores.iter().map(StoreTable::shown).collect();
    names.join(", ")
}

fn has_table(value: &Value) -> bool {
    match value {
        Value::Table(_) => true,
        Value::Array(list) => list.iter().any(Value::is_table),
        _ => false,
    }
}

/// Collects every table with a `url`, in the order of the names.
fn collect(name: &str, value: Value, stores: &mut Vec<StoreTable>) {
    match value {
        Value::Table(table) => {
            if table.contains_key("url") {
                stores.push(StoreTable {
                    name: name.to_owned(),
                    table: table.clone(),
                });
            }
            for (key, value) in table {
                let name = match name {
                    "" => key,
                    above => format!("{above}.{key}"),
                };
                collect(&name, value, stores);
            }
        }
        Value::Array(list) => {
            for (number, value) in (1..).zip(list) {
                collect(&format!("{name} {number}"), value, stores);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file<T>(text: &str, table: &str, test: impl Fn(&ConfigFile) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app.toml");
        std::fs::write(&file, text).unwrap();
        let given = format!("{}{table}", file.display());
        test(&ConfigFile::new(Path::new(&given)))
    }

    fn stores(text: &str, table: &str) -> Result<Vec<String>, Failure> {
        let stores = with_file(text, table, ConfigFile::stores)?;
        Ok(stores.iter().map(StoreTable::shown).collect())
    }

    fn url(text: &str, table: &str) -> Result<String, String> {
        let found = with_file(text, table, ConfigFile::config);
        let found = found.map_err(|failure| failure.to_string())?;
        Ok(found.0.url().to_string())
    }

    const APP: &str = "port = 80\n[locks]\nurl = 'memory:'\nttl = '5s'\n\
                       [[other.list]]\nurl = 'memory:a'\n[[other.list]]\nurl = 'memory:b'";

    #[test]
    fn tables_with_a_url_are_stores() {
        let all = ["[locks]", "[other.list 1]", "[other.list 2]"];
        assert_eq!(stores(APP, "").unwrap(), all);
        assert_eq!(stores(APP, ":other.list 2").unwrap(), [all[2]]);
        assert_eq!(stores("url = 'memory:'", "").unwrap(), ["the file itself"]);
    }

    #[test]
    fn only_store_needs_no_name() {
        assert_eq!(
            url("port = 80\n[a.locks]\nurl = 'memory:x'", "").unwrap(),
            "memory:x"
        );
        assert_eq!(url(APP, ":other.list 1").unwrap(), "memory:a");
        let beside = "url = 'https://shop.example'\n[locks]\nurl = 'memory:y'";
        assert_eq!(url(beside, ":locks").unwrap(), "memory:y");
        for (text, table, part) in [
            (
                APP,
                "",
                "several stores: [locks], [other.list 1], [other.list 2]",
            ),
            (APP, "", "app.toml:other.list 2"),
            (beside, "", "several stores: the file itself, [locks]"),
            (
                APP,
                ":looks",
                "no table [looks] with a `url`; its stores are [locks],",
            ),
            ("[a]\nurl = 'memory:'\nb = 1.5", "", "[a]: `b` takes"),
            ("url = 'memory:'\n[b]\nttl = '5s'", "", "`b` is a table"),
            ("port = 80", "", "no store"),
        ] {
            let said = url(text, table).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn file_of_the_whole_name_is_no_table() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app:locks");
        std::fs::write(&file, "url = 'memory:'").unwrap();
        assert!(ConfigFile::new(&file).config().is_ok());
    }

    #[test]
    fn errors_name_the_line_and_show_no_secret() {
        let text = "[locks]\nurl = 'redis://:s3cret@host'\npassword = 's3cret";
        let said = url(text, "").unwrap_err();
        assert!(said.contains("line 3"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}
