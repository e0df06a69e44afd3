//! Finds the store: on the command line, in the environment or in a config file.

use std::ffi::OsString;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::backend::{OpenOptions, drivers};
use lockkeeper::{Config, Error, LockKeeper};

use crate::args::StoreArgs;
use crate::failure::{CONFIG, Failure};

mod file;

pub(crate) use self::file::ConfigFile;

/// The variable that names the config file.
const FILE: &str = "LOCKKEEPER_CONFIG";
const URL: &str = "LOCKKEEPER_URL";
const PREFIX: &str = "LOCKKEEPER";
/// The variable with which `run` gives its command the slot of its permit.
pub(crate) const SLOT: &str = "LOCKKEEPER_SLOT";
/// The variable with which `run` gives its command the tokens of several names.
pub(crate) const TOKENS: &str = "LOCKKEEPER_TOKENS";

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

/// Returns the settings of the store, and where they are in a config file, if they are from one.
fn find(args: &StoreArgs) -> Result<(Config, Option<String>), Failure> {
    Ok(match source(args)? {
        Source::Url(url) => {
            check_environment("--url")?;
            (Config::from_url(&url)?, None)
        }
        Source::Environment => (Config::from_env(PREFIX)?, None),
        Source::File(file) => {
            check_environment(&format!("the config file {}", file.display()))?;
            let (config, origin) = ConfigFile::new(&file).config()?;
            (config, Some(origin))
        }
    })
}

/// Refuses keys in the environment while the URL is from `origin`. Ignored, such a key makes the command act on other
/// locks than its user means. Applied, it would change the meaning of a URL or a file that says all about its store.
fn check_environment(origin: &str) -> Result<(), Failure> {
    match Config::keys_in_env(PREFIX).first() {
        None => Ok(()),
        Some(variable) => Err(Failure::new(
            CONFIG,
            format!(
                "{variable} is set, and has no effect on the store of {origin}: it belongs to LOCKKEEPER_URL; \
                 unset it, and say there what it says"
            ),
        )),
    }
}

/// Returns the variables that name the same store to another `lockkeeper`.
pub(crate) fn environment(args: &StoreArgs) -> Result<Vec<(OsString, OsString)>, Failure> {
    Ok(match source(args)? {
        Source::Url(url) => vec![(URL.into(), with_absolute_path(url).into())],
        Source::Environment => std::env::vars_os()
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LOCKKEEPER_"))
            // A `run` around this one has set them for its own command.
            .filter(|(name, _)| name != SLOT && name != TOKENS)
            .map(|(name, value)| match value.into_string() {
                Ok(url) if name == URL => (name, with_absolute_path(url).into()),
                Ok(text) => (name, text.into()),
                Err(value) => (name, value),
            })
            .collect(),
        Source::File(file) => {
            // The command may change its folder.
            let path = std::path::absolute(&file).unwrap_or(file);
            vec![(FILE.into(), path.into())]
        }
    })
}

/// Returns the URL with the path of a SQLite file made absolute: the command may change its folder.
fn with_absolute_path(url: String) -> String {
    let Ok(config) = Config::from_url(&url) else {
        return url;
    };
    let path = Path::new(config.url().path());
    if config.url().scheme() != "sqlite" || path.is_absolute() {
        return url;
    }
    let path = std::path::absolute(path);
    // A URL has no other text than UTF-8.
    let Some(path) = path.as_deref().ok().and_then(Path::to_str) else {
        return url;
    };
    let query = url.find('?').and_then(|at| url.get(at..));
    lockkeeper::backend::StoreUrl::location("sqlite:", path, &[]) + query.unwrap_or_default()
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

/// Uses the settings of the store that was found. An error of the configuration names their file.
fn with_config<T>(
    args: &StoreArgs,
    work: impl FnOnce(Config) -> Result<T, Error>,
) -> Result<T, Failure> {
    let (config, origin) = find(args)?;
    work(config).map_err(|error| {
        let mut failure = Failure::from(error);
        if let Some(origin) = origin
            && failure.code == CONFIG
        {
            failure.text = format!("{} ({origin})", failure.text);
        }
        failure
    })
}

/// Opens the store, with its settings changed.
pub(crate) fn open(
    args: &StoreArgs,
    options: &OpenOptions,
    change: impl FnOnce(Config) -> Config,
) -> Result<LockKeeper, Failure> {
    with_config(args, |config| drivers().open_with(&change(config), options))
}

/// A SQLite file that the first lock of a store creates. Another file beside it is tried in its place, and is deleted
/// when this is dropped.
pub(crate) struct NewFile {
    pub(crate) path: String,
    tried: String,
}

impl NewFile {
    /// Returns `None` if the store is no SQLite file, or if the file exists. A link to nothing exists: no lock is
    /// created through it.
    pub(crate) fn find(args: &StoreArgs) -> Result<Option<Self>, Failure> {
        let url = find(args)?.0.url().clone();
        let found = Path::new(url.path()).symlink_metadata();
        let is_missing = found.is_err_and(|error| error.kind() == NotFound);
        Ok((url.scheme() == "sqlite" && is_missing).then(|| Self {
            path: url.path().to_owned(),
            tried: format!("{}-doctor-{:08x}", url.path(), std::process::id()),
        }))
    }

    /// Opens the other file. Errors name the file itself.
    pub(crate) fn open(&self, args: &StoreArgs) -> Result<LockKeeper, Failure> {
        let options = OpenOptions::new().wait(Duration::ZERO);
        let opened = with_config(args, |config| {
            let config = config.without("fallback").with_path(&self.tried);
            drivers().open_with(&config, &options)
        });
        opened.map_err(|failure| {
            let text = failure.text.replace(&self.tried, &self.path);
            Failure::new(failure.code, text)
        })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", self.tried));
        }
    }
}

/// Opens the store without its fallbacks, in one attempt. A question about one store is not answered by another, and
/// an operator wants to know at once that it is out of reach. A file that does not exist is not created.
pub(crate) fn open_existing(args: &StoreArgs) -> Result<LockKeeper, Failure> {
    let options = OpenOptions::new().wait(Duration::ZERO);
    with_config(args, |config| {
        let config = config.without("fallback");
        let config = match config.url().scheme() {
            "sqlite" => config.without("create").set("create", "false")?,
            _ => config,
        };
        drivers().open_with(&config, &options)
    })
}
