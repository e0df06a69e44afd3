//! `lockkeeper who`, `unlock` and `doctor`.

use std::time::Duration;

use super::{StoreArgs, duration, seconds_or_duration};

pub(super) const WHO: &str = include_str!("who_about.txt").trim_ascii_end();
pub(super) const WHO_DETAILS: &str = include_str!("who_details.txt").trim_ascii_end();
pub(super) const UNLOCK: &str = include_str!("unlock_about.txt").trim_ascii_end();
pub(super) const UNLOCK_DETAILS: &str = include_str!("unlock_details.txt").trim_ascii_end();
pub(super) const DOCTOR: &str = include_str!("doctor_about.txt").trim_ascii_end();
pub(super) const DOCTOR_DETAILS: &str = include_str!("doctor_details.txt").trim_ascii_end();

/// The options of `who`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Who {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the names of every namespace of the store.
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(crate) all_namespaces: bool,

    /// Show the list again and again, until Ctrl-C: in place at a terminal, else whenever it has changed.
    #[arg(long)]
    pub(crate) watch: bool,

    /// How long --watch pauses between two lists: 1m, or a number of seconds such as 0.5; at least 0.1.
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = interval, requires = "watch")]
    pub(crate) interval: Duration,

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Show only this name.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Parses a pause that leaves the store some time for its locks.
fn interval(text: &str) -> Result<Duration, String> {
    match seconds_or_duration(text)? {
        pause if pause >= Duration::from_millis(100) => Ok(pause),
        _ => Err("the store is to be asked at most ten times a second: 100ms or more".to_owned()),
    }
}

/// The options of `unlock`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Confirm that another holder loses the lock. Required.
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// The lock's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// The options of `doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of text; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,
}
