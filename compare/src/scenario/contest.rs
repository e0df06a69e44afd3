//! What `gather` and `stock` share: many threads change one number.

use super::context::{Program, RunResult};
use crate::error::Error;
use crate::threads::barrier_start;

/// How a contest for one number ended.
pub(super) struct Contest {
    pub(super) run: RunResult,
    /// The number at the end.
    pub(super) number: i64,
    /// How many users are recorded.
    pub(super) recorded: i64,
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
        let (outcomes, elapsed) = barrier_start(context.settings.threads, |user| {
            let decide = |read: &[i64]| Some(vec![next(*read.first()?)?]);
            program.execute(user, &[0], context.long_wait(), decide, |_| Ok(()))
        })?;
        Ok(Self {
            run: RunResult::of(&outcomes, elapsed),
            number: context.state.read(0)?,
            recorded: context.state.recorded()?,
        })
    }
}
