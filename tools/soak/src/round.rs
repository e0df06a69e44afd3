//! One round: workers, faults, and the check of what was recorded.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::checker::{Checker, Evidence, Found, Rule};
use crate::faults::workers::Workers;
use crate::faults::{Deadline, Fault, Journal, Lane, network, server};
use crate::history::History;
use crate::leftovers;
use crate::log::now;
use crate::plan::Plan;
use crate::store::Store;
use crate::threads::join_all;

/// What happened in a round.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// When the round began, as [`now`] returns it.
    pub(crate) began: u64,
    /// When its workers had ended.
    pub(crate) ended: u64,
    pub(crate) history: History,
    pub(crate) faults: Vec<Fault>,
    pub(crate) found: Found,
}

/// What all rounds of a store share.
pub(crate) struct Rounds<'a> {
    pub(crate) args: &'a Args,
    pub(crate) store: &'a Store,
    /// Set by Ctrl-C.
    pub(crate) is_interrupted: &'a AtomicBool,
}

impl Rounds<'_> {
    /// Runs a round whose workers write their logs to `folder`, with faults for `length`.
    pub(crate) fn run(
        &self,
        folder: &Path,
        seed: u64,
        length: Duration,
        checker: &mut Checker,
    ) -> io::Result<Outcome> {
        let began = now();
        let journal = Journal::default();
        let deadline = Deadline::new(Instant::now() + length, self.is_interrupted);
        let (mut logs, complaints) = self.break_for(folder, seed, deadline, &journal)?;
        let ended = now();
        let names = self.args.names;
        let leftovers = leftovers::find(self.store, &self.key(), names, self.args.ttl)?;
        logs.push(leftovers.attempts);
        let mut history = History::default();
        for log in &logs {
            history.add(log).map_err(io::Error::other)?;
        }
        history.left.extend(leftovers.left);
        let mut noted = journal.into_noted();
        if self.args.processes == 1 {
            // The worker may be stopped meanwhile, and another one is not there.
            noted.watched.clear();
        }
        let mut found = checker.check(&history, &noted);
        for complaint in complaints {
            found.add(Rule::Worker, Evidence::Text(complaint));
        }
        Ok(Outcome {
            began,
            ended,
            history,
            faults: noted.faults,
            found,
        })
    }

    /// Runs workers and breaks everything until the deadline. Returns the logs, and what was wrong with the
    /// ends of workers.
    fn break_for(
        &self,
        folder: &Path,
        seed: u64,
        deadline: Deadline<'_>,
        journal: &Journal,
    ) -> io::Result<(Vec<crate::history::ProcessLog>, Vec<String>)> {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let ttl = self.args.ttl;
        let mut lane = || Lane::new(seeds.u64(..), deadline, ttl, journal);
        let (mut on_workers, mut on_network, mut on_server) = (lane(), lane(), lane());
        let mut workers = Workers::start(folder, self.plan(), self.shape().0, &mut on_workers)?;
        thread::scope(|scope| {
            let network = scope.spawn(move || match self.store.proxy() {
                Some(proxy) => {
                    network::run(&mut on_network, proxy, self.store.ends_with_connection())
                }
                None => Ok(()),
            });
            let server = scope.spawn(move || server::run(&mut on_server, self.store));
            let workers = workers.run(&mut on_workers);
            join_all([network, server]).and(workers)
        })?;
        workers.finish()
    }

    /// Returns the number of processes, and of threads in each.
    fn shape(&self) -> (u32, u32) {
        let (processes, threads) = (self.args.processes, self.args.threads);
        if self.store.is_in_process() {
            (1, processes * threads)
        } else {
            (processes, threads)
        }
    }

    /// Returns the key that is added to all URLs.
    fn key(&self) -> String {
        format!("ttl={}ms", self.args.ttl.as_millis())
    }

    /// Returns the plan of every worker, apart from its log and its seed.
    fn plan(&self) -> Plan {
        let key = self.key();
        let urls = self.store.urls.iter();
        Plan {
            urls: urls.map(|url| format!("{url}{key}")).collect(),
            log: Path::new("").to_owned(),
            seed: 0,
            threads: self.shape().1,
            names: self.args.names,
            hold: self.args.hold,
            ttl: self.args.ttl,
            closes: false,
            is_alone: self.store.is_in_process(),
        }
    }
}
