//! `lockkeeper compare`.

use std::time::Duration;

use clap::ArgAction;

use crate::failure::Failure;
use crate::scenario::{Scenario, Sizes};
use crate::strategy::Kind;

/// The shortest thought between reading and writing with which the control fails reliably.
const LEAST_HELD: Duration = Duration::from_millis(1);
const MOST_HELD: Duration = Duration::from_secs(10);

pub(super) const ABOUT: &str = "\
Lets many threads do the same work with and without a lock, on several stores, and says who was
right.

The threads read a number, think for a moment (--held) and write it back in separate statements:
nothing but the lock protects it. The control, `none`, takes no lock, and must go wrong.

Scenarios:
  gather  --threads ask for --seats seats at once; exactly that many may get in
  stock   --threads buy from --items items, then from more items than buyers: sold is the smaller
          of the two, and the stock agrees
  slow    the work outlives the lease. Renewed: nobody else gets in. Not renewed: the holder is
          told, its late write is refused by its token, its release frees nobody else's lock";

pub(super) const DETAILS: &str = "\
Stores:
  Without --url: `memory:`, and a SQLite file in a folder that is removed at the end. Locks are
  taken on the store of the URL, under names of this run. What they protect is a plain cell for
  `memory:`, and for `sqlite:` a second SQLite file in the throw-away folder: a database of yours
  gets no tables beside the locks'. For `redis:`, `rediss:` and `unix:` it is three keys on the same
  server, `{lockkeeper-compare-...}:...`, which are removed at the end, and by their time to live an
  hour after a run that was killed. `memory:` without a name is given one, so that two keepers meet
  on it.

Columns:
  admitted, turned away   of the worst repetition; in `stock` those of the run with fewer items
                          than buyers. In `slow` they count jobs: done, and refused as too late
  oversold                let in beyond the limit; in `slow`: let in beside another, or overwriting
  elapsed, cpu            of one repetition (the median); cpu is this program's, all threads
  wait                    from asking for the lock to having it: median, 99th percentile, longest
  cmds/grant              commands or statements that the lock sent to its store, for each grant:
                          not those of the state, nor what a script runs within the server
  conns                   connections of the lock to its store, at the peak
  verdict                 right only if every repetition was

  A control that happens to go right is run again, at most 20 times: it shows that the scenario can
  fail, not how often.

JSON (--json), version 1: one object
  schema    \"lockkeeper-compare\"
  version   1; grows when a field changes its meaning or goes
  complete  false when the run ended early: rows are missing
  settings  {threads, seats, items, held_ms, repeat}
  rows      [{scenario, store, strategy, admitted, turned_away, oversold, elapsed_ms,
              wait_ms {p50, p99, max}, commands_per_grant, connections, cpu_ms,
              verdict, expected, faults}]
            verdict and expected (the verdict that it must have) are \"right\" or \"wrong\";
            faults is a list of texts, empty where the verdict is right; null is what cannot be
            counted

Exit status:
  0    every row is as it must be: the locks right, the controls wrong
  1    a row is not, or a store could not be used
  2    the command line cannot be used
  130  interrupted; what was measured until then is shown";

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

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no progress.
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(crate) quiet: bool,
}

impl Compare {
    /// What one argument alone cannot tell.
    pub(crate) fn check(&self) -> Result<(), Failure> {
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
        assert_eq!(chosen::<Scenario>(&[]).len(), 3);
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
