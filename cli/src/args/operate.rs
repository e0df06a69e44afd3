//! `lockkeeper who`, `unlock` and `doctor`.

use std::time::Duration;

use super::{StoreArgs, duration};

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

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Show only this name.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
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
