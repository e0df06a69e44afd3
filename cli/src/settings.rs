//! Which store: from the command line, the environment or a config file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper::{Config, LockKeeper, Observer, open_config};

use crate::args::Place;
use crate::trouble::{CONFIG, Trouble};

/// Names the config file.
const FILE: &str = "LOCKKEEPER_CONFIG";
const PREFIX: &str = "LOCKKEEPER";

/// The first of: what the command line says, a file that the environment names, the environment, a
/// file where config files are.
pub(crate) fn config(place: &Place) -> Result<Config, Trouble> {
    if let Some(url) = &place.url {
        return Ok(Config::from_url(url)?);
    }
    if let Some(file) = &place.config {
        return read(file);
    }
    if let Some(file) = std::env::var_os(FILE) {
        return read(Path::new(&file));
    }
    if std::env::var_os(format!("{PREFIX}_URL")).is_some() {
        return Ok(Config::from_env(PREFIX)?);
    }
    match usual_files().iter().find(|file| file.exists()) {
        Some(file) => read(file),
        None => Err(Trouble::new(
            CONFIG,
            "no store is named; give --url, set LOCKKEEPER_URL, or write `url = \"…\"` to \
             ~/.config/lockkeeper.toml or /etc/lockkeeper.toml",
        )),
    }
}

fn usual_files() -> Vec<PathBuf> {
    let own = match std::env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty()) {
        Some(folder) => Some(PathBuf::from(folder)),
        None => std::env::home_dir().map(|home| home.join(".config")),
    };
    let own = own.map(|folder| folder.join("lockkeeper.toml"));
    own.into_iter()
        .chain([PathBuf::from("/etc/lockkeeper.toml")])
        .collect()
}

fn read(file: &Path) -> Result<Config, Trouble> {
    let bad = |why: &dyn std::fmt::Display| {
        Trouble::new(
            CONFIG,
            format!("the config file {} cannot be used: {why}", file.display()),
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
    // The message alone: the error's own text shows the line, and with it perhaps a password.
    toml::from_str(&text).map_err(|error| bad(&error.message()))
}

/// Opens the store.
pub(crate) fn open(place: &Place, observer: Arc<dyn Observer>) -> Result<LockKeeper, Trouble> {
    Ok(open_config(&config(place)?.observer(observer))?)
}

/// Opens the first store alone: who asks about that one wants no answer from another.
pub(crate) fn open_first(place: &Place) -> Result<LockKeeper, Trouble> {
    Ok(open_config(&config(place)?.without_fallbacks())?)
}

/// The same where it is there, to look into it.
pub(crate) fn open_existing(place: &Place) -> Result<LockKeeper, Trouble> {
    let mut config = config(place)?.without_fallbacks();
    if config.url().scheme() == "sqlite" {
        // Where it is said already, that counts.
        config = config.clone().set("create", "false").unwrap_or(config);
    }
    Ok(open_config(&config)?)
}
