//! `lockkeeper compare`.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;

use crate::config_file;
use crate::failure::Failure;
use crate::scenario::{Scenario, Sizes};
use crate::store::{Source, Wanted};
use crate::strategy::Kind;

/// The shortest thought between reading and writing with which the control fails reliably.
const LEAST_HELD: Duration = Duration::from_millis(1);
const MOST_HELD: Duration = Duration::from_secs(10);

pub(super) const ABOUT: &str = include_str!("compare_about.txt");
pub(super) const DETAILS: &str = include_str!("compare_details.txt");

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Compare {
    /// Threads that compete: 2 to 10000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(crate) threads: u32,

    /// Seats in `gather`, fewer than threads.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..10_000))]
    pub(crate) seats: u32,

    /// Items in `stock`, fewer than threads.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..10_000))]
    pub(crate) items: u32,

    /// How long a thread thinks between reading and writing: 1ms to 10s.
    #[arg(long, value_name = "DUR", default_value = "1ms", value_parser = held)]
    pub(crate) held: Duration,

    /// How often each row is run: 1 to 1000. It is right only if it is right each time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) repeat: u32,

    /// A scenario to run; can be repeated. Default: all.
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Vec<Scenario>,

    /// A strategy to run; can be repeated. Default: all.
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Vec<Kind>,

    /// A store to lock on, such as sqlite:/tmp/locks.db; can be repeated. Default: see below.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Vec<String>,

    /// A TOML file whose tables with a `url` are stores; can be repeated. See below.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,

    /// Start Redis, MariaDB and MySQL servers for the run, as far as they are installed, and stop
    /// them at its end. Beside the embedded stores, and those of --url and --config.
    #[arg(long)]
    pub(crate) servers: bool,

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a page with the verdicts and charts to this file, too; it needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Be the process that holds a lock and is killed, in `crash`.
    #[arg(long, hide = true)]
    pub(crate) holder: bool,

    /// Show no progress.
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(crate) quiet: bool,
}

impl Compare {
    /// What one argument alone cannot tell.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if let Some(file) = &self.html {
            // Now rather than after minutes.
            let open = File::options().append(true).create(true).open(file);
            open.map_err(|error| {
                Failure::Usage(format!(
                    "--html {} cannot be written: {error}; choose another file",
                    file.display()
                ))
            })?;
        }
        for (scenario, option, limit) in [
            (Scenario::Gather, "--seats", self.seats),
            (Scenario::Stock, "--items", self.items),
        ] {
            if self.scenarios().contains(&scenario) && limit >= self.threads {
                return Err(Failure::Usage(format!(
                    "{option} {limit} is enough for all of --threads {}, so nothing could be \
                     oversold; use more threads or a smaller {option}",
                    self.threads
                )));
            }
        }
        Ok(())
    }

    /// The stores that were asked for.
    pub(crate) fn wanted(&self) -> Result<Vec<Wanted>, Failure> {
        let urls = (1..).zip(&self.url).map(|(number, url)| Wanted {
            from: format!("--url {number}"),
            source: Source::url(url),
            redlock: Vec::new(),
        });
        let mut wanted: Vec<_> = urls.collect();
        for file in &self.config {
            wanted.extend(config_file::stores(file)?);
        }
        Ok(wanted)
    }

    /// How big the scenarios are.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            threads: self.threads,
            seats: self.seats,
            items: self.items,
            held: self.held,
        }
    }

    /// The scenarios that were asked for, each once, in the order of the documentation.
    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        chosen(&self.scenario)
    }

    /// The strategies that were asked for, likewise.
    pub(crate) fn strategies(&self) -> Vec<Kind> {
        chosen(&self.strategy)
    }
}

fn chosen<T: clap::ValueEnum + PartialEq>(asked: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().cloned();
    all.filter(|one| asked.is_empty() || asked.contains(one))
        .collect()
}

fn held(text: &str) -> Result<Duration, String> {
    let held = humantime::parse_duration(text)
        .map_err(|error| format!("not a duration ({error}); write it like 1ms or 2s"))?;
    if held < LEAST_HELD {
        return Err("with less than 1ms between reading and writing the control could happen to be right; use 1ms or more".to_owned());
    }
    if held > MOST_HELD {
        return Err("the threads hold the lock one after the other, so this would take too long; use 10s or less".to_owned());
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_keeps_the_order_and_names_each_once() {
        let asked = [Scenario::Slow, Scenario::Gather, Scenario::Slow];
        assert_eq!(chosen(&asked), [Scenario::Gather, Scenario::Slow]);
        assert_eq!(chosen::<Scenario>(&[]).len(), 7);
    }

    #[test]
    fn the_time_held_is_bounded() {
        assert_eq!(held("2ms").unwrap(), Duration::from_millis(2));
        for (text, way_out) in [
            ("0s", "1ms or more"),
            ("11s", "10s or less"),
            ("5", "like 1ms"),
        ] {
            assert!(held(text).unwrap_err().contains(way_out), "{text}");
        }
    }
}
