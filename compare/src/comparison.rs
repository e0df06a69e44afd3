//! What to compare, as the caller chooses it.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::CancelToken;

use crate::error::Error;
use crate::holder::HolderCommand;
use crate::report::row::Row;
use crate::scenario::Scenario;
use crate::settings::{MIN_HELD, Settings};
use crate::store::spec::StoreSpec;
use crate::strategy::Strategy;

const MAX_HELD: Duration = Duration::from_secs(10);

/// What happens during a comparison; see [`Comparison::on_event`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The servers of [`Comparison::servers`] are being started.
    ServersStarting,
    /// The stores are open, and this many rows are going to be run.
    Planned(usize),
    /// A row begins.
    RowStarted {
        /// The row's scenario.
        scenario: Scenario,
        /// The row's store.
        store: &'a str,
        /// The row's strategy.
        strategy: Strategy,
    },
    /// A row has been run as often as [`Comparison::repeat`] says.
    RowFinished(&'a Row),
}

/// What to compare: every scenario, on every store, with every strategy.
///
/// The default is all scenarios and all strategies with 100 threads, on `memory:` and on a SQLite
/// file that is thrown away.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub(crate) stores: Vec<StoreSpec>,
    /// None at all means all of them, here and below.
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) strategies: Vec<Strategy>,
    pub(crate) settings: Settings,
    pub(crate) servers: bool,
    pub(crate) holder: Option<HolderCommand>,
    pub(crate) temp_dir: Option<PathBuf>,
    pub(crate) cancel: CancelToken,
    on_event: Option<Listener>,
}

impl Comparison {
    /// Returns a comparison of everything on the two embedded stores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a store by its URL. With the first one, the embedded stores are no longer compared.
    pub fn url(self, url: &str) -> Self {
        let number = self.stores.len() + 1;
        self.store(StoreSpec::url(url).origin(format!("store {number}")))
    }

    /// Adds a store, as [`Comparison::url`] does.
    pub fn store(mut self, store: StoreSpec) -> Self {
        self.stores.push(store);
        self
    }

    /// Starts Redis, MariaDB, MySQL, PostgreSQL, etcd, Consul and ZooKeeper servers for the run, as far as they are
    /// installed, and stops them at its end. They are compared beside the embedded stores and those that were added.
    pub fn servers(mut self, servers: bool) -> Self {
        self.servers = servers;
        self
    }

    /// Runs only these scenarios, in the order of [`Scenario::ALL`]. None at all means all of them.
    pub fn scenarios(mut self, scenarios: impl IntoIterator<Item = Scenario>) -> Self {
        self.scenarios = scenarios.into_iter().collect();
        self
    }

    /// Runs only these strategies, in the order of [`Strategy::ALL`]. None at all means
    /// all of them.
    pub fn strategies(mut self, strategies: impl IntoIterator<Item = Strategy>) -> Self {
        self.strategies = strategies.into_iter().collect();
        self
    }

    /// Sets how many threads compete: 2 to 10,000. The default is 100.
    pub fn threads(mut self, threads: u32) -> Self {
        self.settings.threads = threads;
        self
    }

    /// Sets the seats of `gather`: 1 or more, and fewer than threads. The default is 5.
    pub fn seats(mut self, seats: u32) -> Self {
        self.settings.seats = seats;
        self
    }

    /// Sets the items of `stock`: 1 or more, and fewer than threads. The default is 10.
    pub fn items(mut self, items: u32) -> Self {
        self.settings.items = items;
        self
    }

    /// Sets how long a thread thinks between reading and writing: 1 ms, the default, to 10 s.
    pub fn held(mut self, held: Duration) -> Self {
        self.settings.held = held;
        self
    }

    /// Sets how often each row is run: 1, the default, to 1,000. A row is right only if it is right
    /// each time.
    pub fn repeat(mut self, times: u32) -> Self {
        self.settings.repeat = times;
        self
    }

    /// Names the program that holds a lock in `crash` or permits in `limit` and is killed. Its `main` has to call
    /// [`holder::main`](crate::holder::main) when it is started with these arguments.
    ///
    /// ```no_run
    /// # use lockkeeper_compare::{Comparison, Error, holder};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// if std::env::args().nth(1).as_deref() == Some("--holder") {
    ///     return Ok(holder::main()?);
    /// }
    /// let report = Comparison::new()
    ///     .url("sqlite:/var/lib/app/locks.db")
    ///     .holder(std::env::current_exe()?, ["--holder"])
    ///     .run()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder<A: Into<OsString>>(
        mut self,
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        self.holder = Some(HolderCommand {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
        });
        self
    }

    /// Sets where the throw-away folder is made; the default is the system's folder for temporary
    /// files.
    pub fn temp_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.temp_dir = Some(folder.into());
        self
    }

    /// Ends the run early when `cancel` is cancelled.
    pub fn cancel(mut self, cancel: &CancelToken) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Calls `listener` at each [`Event`], on the thread that runs the comparison.
    pub fn on_event(mut self, listener: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Listener(Arc::new(listener)));
        self
    }

    /// Checks that these settings show something.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (settings, chosen) = (&self.settings, &self.scenarios);
        for (name, value, range) in [
            ("threads", settings.threads, 2..=10_000),
            ("repeat", settings.repeat, 1..=1_000),
        ] {
            if !range.contains(&value) {
                return Err(Error::invalid(format!(
                    "{name} is {value}, and has to be in {range:?}"
                )));
            }
        }
        for (name, value, scenario) in [
            ("seats", settings.seats, Scenario::Gather),
            ("items", settings.items, Scenario::Stock),
        ] {
            let is_enough = value >= settings.threads && chosen.contains(&scenario);
            if value < 1 || is_enough {
                return Err(Error::invalid(format!(
                    "{value} {name} for {} threads: nothing could be oversold; use more threads, \
                     or fewer {name} (at least 1)",
                    settings.threads
                )));
            }
        }
        if settings.held < MIN_HELD {
            return Err(Error::invalid(
                "with less than 1ms between reading and writing the control could happen to be \
                 right; use 1ms or more",
            ));
        }
        if settings.held > MAX_HELD {
            return Err(Error::invalid(
                "the threads hold the lock one after the other, so this would take too long; use \
                 10s or less",
            ));
        }
        Ok(())
    }

    pub(crate) fn notify(&self, event: Event<'_>) {
        if let Some(Listener(listener)) = &self.on_event {
            listener(event);
        }
    }
}

/// A function that is called at each event.
#[derive(Clone)]
struct Listener(Arc<dyn Fn(Event<'_>) + Send + Sync>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_without_a_holder_program_runs_on_memory_alone() {
        let crash = Comparison::new()
            .scenarios([Scenario::Crash])
            .strategies([Strategy::Lockkeeper]);
        let report = crash.run().unwrap();
        let stores: Vec<_> = report.rows.iter().map(|row| row.store.as_str()).collect();
        assert_eq!(stores, ["memory"]);
        assert!(report.missing.join("").contains("crash on sqlite"));

        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/locks.db", folder.path().display());
        let error = crash.url(&url).run().unwrap_err();
        assert!(error.to_string().contains("Comparison::holder"), "{error}");
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let gather = || Comparison::new().url("memory:");
        for comparison in [
            gather().threads(1),
            gather().threads(10_001),
            gather().seats(0),
            gather().items(100),
            gather().held(Duration::ZERO),
            gather().held(Duration::from_secs(11)),
            gather().repeat(0),
        ] {
            let result = comparison.run();
            assert!(matches!(result, Err(Error::Invalid(_))), "{comparison:?}");
        }
    }
}
