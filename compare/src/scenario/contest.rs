//! What `gather`, `stock`, `seat` and `party` share: many threads want something scarce.

use super::context::{Program, RunResult};
use crate::error::Error;
use crate::stopwatch::Elapsed;
use crate::strategy::transaction::Outcome;
use crate::threads::barrier_start;

/// How the requests of many threads ended.
#[derive(Debug, Default)]
pub(super) struct OutcomeCounts {
    /// Threads whose transaction was done.
    pub(super) admitted: u64,
    /// All other threads.
    pub(super) turned_away: u64,
    /// How many of these got an error, and the first error.
    broken: Option<(u64, String)>,
}

impl OutcomeCounts {
    pub(super) fn of(outcomes: &[Outcome]) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            if *outcome == Outcome::Done {
                counts.admitted += 1;
            } else {
                counts.turned_away += 1;
            }
            if let Outcome::Broken(why) = outcome {
                let (count, _) = counts.broken.get_or_insert_with(|| (0, why.clone()));
                *count += 1;
            }
        }
        counts
    }

    /// Adds the errors to the faults: a request that fails is wrong, whatever the data says.
    pub(super) fn add_faults(&self, prefix: &str, run: &mut RunResult) {
        if let Some((count, why)) = &self.broken {
            run.fault(&format!("{prefix}{count} requests failed: {why}"));
        }
    }
}

/// How a contest for one number ended.
pub(super) struct Contest {
    pub(super) counts: OutcomeCounts,
    /// The number at the end.
    pub(super) number: i64,
    /// How many users are recorded.
    pub(super) recorded: i64,
    pub(super) elapsed: Elapsed,
}

impl Contest {
    /// Runs all threads at once. Each reads the number, which begins with `start`, thinks, and writes
    /// the result of `next` and its user, in two statements.
    pub(super) fn run(
        program: &Program<'_>,
        start: u32,
        next: impl Fn(i64) -> Option<i64> + Sync,
    ) -> Result<Self, Error> {
        let context = program.context;
        context.state.reset(&[i64::from(start)])?;
        let (outcomes, elapsed) = barrier_start(context.sizes.threads, |user| {
            program.execute(user, &[0], context.long_wait(), |read| {
                let number = read.first().copied()?;
                Some(vec![next(number)?])
            })
        })?;
        Ok(Self {
            counts: OutcomeCounts::of(&outcomes),
            number: context.state.read(0)?,
            recorded: context.state.recorded()?,
            elapsed,
        })
    }
}
