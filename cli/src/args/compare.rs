//! `lockkeeper compare`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use lockkeeper_compare::{Scenario, Strategy};

use super::duration;

pub(super) const ABOUT: &str = include_str!("compare_about.txt").trim_ascii_end();
pub(super) const DETAILS: &str = include_str!("compare_details.txt").trim_ascii_end();

/// The options of `compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Compare {
    /// Threads that compete: 2 to 10000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) threads: u32,

    /// Seats in `gather`, fewer than threads.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) seats: u32,

    /// Items in `stock`, fewer than threads.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) items: u32,

    /// How long a thread pauses between reading and writing: 1ms to 10s.
    #[arg(long, value_name = "DUR", default_value = "1ms", value_parser = duration)]
    pub(crate) held: Duration,

    /// How often each row is run: 1 to 1000. A row is right only if it is right each time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) repeat: u32,

    /// A scenario to run; can be repeated. Default: all.
    #[arg(long, value_name = "NAME", value_parser = scenario())]
    pub(crate) scenario: Vec<Scenario>,

    /// A strategy to run; can be repeated. Default: all.
    #[arg(long, value_name = "NAME", value_parser = strategy())]
    pub(crate) strategy: Vec<Strategy>,

    /// A store to lock on, such as sqlite:/var/lib/app/locks.db; can be repeated. Default: see below.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Vec<String>,

    /// A TOML file whose tables with a `url` are stores; can be repeated. See below.
    #[arg(long, value_name = "FILE[:TABLE]")]
    pub(crate) config: Vec<PathBuf>,

    /// Start the installed Redis, MariaDB, MySQL, PostgreSQL, etcd, Consul and ZooKeeper servers for the run, and stop
    /// them at its end. They are compared beside the embedded stores, --url and --config.
    #[arg(long)]
    pub(crate) servers: bool,

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write an HTML page with verdicts and charts to this file. The page needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Run as the process that holds a lock in `crash` or `limit` and is killed.
    #[arg(long, hide = true)]
    pub(crate) holder: bool,

    /// Show no progress.
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(crate) quiet: bool,
}

fn scenario() -> impl TypedValueParser<Value = Scenario> {
    let value = |one: Scenario| PossibleValue::new(one.name()).help(one.description());
    let names = PossibleValuesParser::new(Scenario::ALL.map(value));
    names.try_map(|name| name.parse::<Scenario>())
}

fn strategy() -> impl TypedValueParser<Value = Strategy> {
    let value = |one: Strategy| PossibleValue::new(one.name()).help(one.description());
    let names = PossibleValuesParser::new(Strategy::ALL.map(value));
    names.try_map(|name| name.parse::<Strategy>())
}
