//! Finds the store: on the command line, in the environment or in a config file.

use std::ffi::OsString;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper::{Config, LockKeeper, Observer, open_config};
use toml::{Table, Value};

use crate::args::StoreArgs;
use crate::failure::{CONFIG, Failure};

/// The variable that names the config file.
const FILE: &str = "LOCKKEEPER_CONFIG";
const URL: &str = "LOCKKEEPER_URL";
const PREFIX: &str = "LOCKKEEPER";

/// Where the settings of the store are.
enum Source {
    Url(String),
    Environment,
    File(PathBuf),
}

/// Finds the settings of the store. The command line comes first, then a file that the environment names,
/// then the environment, then a file in the usual folders.
fn source(args: &StoreArgs) -> Result<Source, Failure> {
    if let Some(url) = &args.url {
        return Ok(Source::Url(url.clone()));
    }
    let named = args.config.clone();
    let named = named.or_else(|| variable(FILE).map(PathBuf::from));
    if named.is_none() && variable(URL).is_some() {
        return Ok(Source::Environment);
    }
    named.or_else(usual_file).map(Source::File).ok_or_else(|| {
        let text = "no store is named; give --url, set LOCKKEEPER_URL, or write `url = \"…\"` to \
                    ~/.config/lockkeeper.toml or /etc/lockkeeper.toml";
        Failure::new(CONFIG, text)
    })
}

/// Returns the settings of the store, and the config file that they are from, if it is one.
fn find(args: &StoreArgs) -> Result<(Config, Option<PathBuf>), Failure> {
    Ok(match source(args)? {
        Source::Url(url) => (Config::from_url(&url)?, None),
        Source::Environment => (Config::from_env(PREFIX)?, None),
        Source::File(file) => (read(&file)?, Some(file)),
    })
}

/// Returns the variables that name the same store to another `lockkeeper`.
#[cfg(unix)]
pub(crate) fn environment(args: &StoreArgs) -> Result<Vec<(OsString, OsString)>, Failure> {
    Ok(match source(args)? {
        Source::Url(url) => vec![(URL.into(), url.into())],
        Source::Environment => std::env::vars_os()
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LOCKKEEPER_"))
            .collect(),
        Source::File(file) => {
            // The command may change its folder.
            let path = std::path::absolute(&file).unwrap_or(file);
            vec![(FILE.into(), path.into())]
        }
    })
}

/// Returns a variable; an empty one counts as not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn usual_file() -> Option<PathBuf> {
    let own = match variable("XDG_CONFIG_HOME") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => std::env::home_dir().map(|home| home.join(".config")),
    };
    let own = own.map(|folder| folder.join("lockkeeper.toml"));
    let mut files = own.into_iter().chain(["/etc/lockkeeper.toml".into()]);
    // A file that exists but cannot be read is not skipped: the next one may name another store.
    files.find(|file| match file.symlink_metadata() {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
    })
}

/// Reads the config file of one store, with its `url` and further keys at the top.
fn read(file: &Path) -> Result<Config, Failure> {
    let table = read_table(file)?;
    // Only the files of `compare` have tables.
    if let Some((key, _)) = table.iter().find(|(_, value)| has_table(value)) {
        return Err(unusable(
            file,
            &format!(
                "`{key}` is a table, and this file is of one store; write its `url` and keys at \
                 the top, and no tables"
            ),
        ));
    }
    table
        .try_into()
        .map_err(|error: toml::de::Error| unusable(file, error.message()))
}

fn read_table(file: &Path) -> Result<Table, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let way_out = "make it readable, correct HOME, or name another with --config";
        unusable(file, &format!("{error}; {way_out}"))
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
        unusable(file, &format!("line {line}, column {column}: {message}"))
    })
}

fn unusable(file: &Path, why: &str) -> Failure {
    let file = file.display();
    Failure::new(
        CONFIG,
        format!("the config file {file} cannot be used: {why}"),
    )
}

fn has_table(value: &Value) -> bool {
    match value {
        Value::Table(_) => true,
        Value::Array(list) => list.iter().any(Value::is_table),
        _ => false,
    }
}

/// Reads the config file of several stores, which may belong to another program: a store is the file
/// itself, or every table in it, that has a `url`. Each comes with its name for messages.
#[cfg(feature = "compare")]
pub(crate) fn stores(file: &Path) -> Result<Vec<(String, Table)>, Failure> {
    let mut stores = Vec::new();
    collect_stores("", Value::Table(read_table(file)?), &mut stores);
    if stores.is_empty() {
        let why = "it names no store; a store is a table such as [locks] with url = \"…\"";
        return Err(unusable(file, why));
    }
    Ok(stores)
}

#[cfg(feature = "compare")]
fn collect_stores(name: &str, value: Value, stores: &mut Vec<(String, Table)>) {
    match value {
        Value::Table(table) if table.contains_key("url") => {
            let name = match name {
                "" => "the store".to_owned(),
                name => format!("[{name}]"),
            };
            stores.push((name, table));
        }
        Value::Table(table) => {
            for (key, value) in table {
                let name = match name {
                    "" => key,
                    above => format!("{above}.{key}"),
                };
                collect_stores(&name, value, stores);
            }
        }
        Value::Array(list) => {
            for (number, value) in (1..).zip(list) {
                collect_stores(&format!("{name} {number}"), value, stores);
            }
        }
        _ => {}
    }
}

/// Opens the store that was found, with its settings changed.
fn open_changed(
    args: &StoreArgs,
    change: impl FnOnce(Config) -> Config,
) -> Result<LockKeeper, Failure> {
    let (config, file) = find(args)?;
    open_config(&change(config)).map_err(|error| {
        let mut failure = Failure::from(error);
        if let Some(file) = file
            && failure.code == CONFIG
        {
            failure.text = format!("{} (config file {})", failure.text, file.display());
        }
        failure
    })
}

/// Opens the store.
pub(crate) fn open(args: &StoreArgs, observer: Arc<dyn Observer>) -> Result<LockKeeper, Failure> {
    open_changed(args, |config| config.observer(observer))
}

/// Opens the store without its fallbacks: a question about one store is not answered by another.
pub(crate) fn open_first(args: &StoreArgs) -> Result<LockKeeper, Failure> {
    open_changed(args, Config::without_fallbacks)
}

/// Opens the store without its fallbacks if it exists, and does not create it.
pub(crate) fn open_existing(args: &StoreArgs) -> Result<LockKeeper, Failure> {
    open_changed(args, |config| {
        let config = config.without_fallbacks();
        if config.url().scheme() != "sqlite" {
            return config;
        }
        // The user's own `create` counts.
        config.clone().set("create", "false").unwrap_or(config)
    })
}

#[cfg(test)]
#[cfg(feature = "compare")]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app.toml");
        std::fs::write(&file, text).unwrap();
        let stores = stores(&file)?.into_iter();
        Ok(stores.map(|(name, _)| name).collect())
    }

    #[test]
    fn tables_with_a_url_are_stores() {
        let text = "port = 80\n[locks]\nurl = 'memory:'\nttl = '5s'\n\
                    [[other.list]]\nurl = 'memory:a'\n[[other.list]]\nurl = 'memory:b'";
        let names = names(text).unwrap();
        assert_eq!(names, ["[locks]", "[other.list 1]", "[other.list 2]"]);
    }

    #[test]
    fn errors_name_the_line_and_show_no_secret() {
        let wrong = names("[locks]\nurl = 'redis://:s3cret@host'\npassword = 's3cret").unwrap_err();
        let said = wrong.to_string();
        assert!(said.contains("line 3"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
        let wrong = names("port = 80").unwrap_err().to_string();
        assert!(wrong.contains("no store"), "{wrong}");
    }
}
