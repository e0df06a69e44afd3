//! What `gather`, `stock` and `party` share: many threads want something of which there are few.

use super::context::{Program, Run};
use crate::error::Failure;
use crate::stopwatch::Span;
use crate::strategy::Outcome;
use crate::threads;

/// How the requests of many threads ended.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Threads that were told that they have one.
    pub(super) admitted: u64,
    /// Threads that were not.
    pub(super) turned_away: u64,
    /// Of these, the ones that saw an error, and the first one's text.
    broken: Option<(u64, String)>,
}

impl Tally {
    pub(super) fn of(outcomes: &[Outcome]) -> Self {
        let mut tally = Self::default();
        for outcome in outcomes {
            if *outcome == Outcome::Done {
                tally.admitted += 1;
            } else {
                tally.turned_away += 1;
            }
            if let Outcome::Broken(why) = outcome {
                let (count, _) = tally.broken.get_or_insert_with(|| (0, why.clone()));
                *count += 1;
            }
        }
        tally
    }

    /// A request that fails is wrong, whatever the data says.
    pub(super) fn add_faults(&self, what: &str, run: &mut Run) {
        if let Some((count, why)) = &self.broken {
            run.faults
                .push(format!("{what}{count} requests failed: {why}"));
        }
    }
}

/// How a contest for one number ended.
pub(super) struct Contest {
    /// What the threads were told.
    pub(super) tally: Tally,
    /// The number at the end.
    pub(super) number: i64,
    /// How many users are recorded.
    pub(super) recorded: i64,
    /// How long it took.
    pub(super) span: Span,
}

/// All threads at once: read the number, which is `start` at first, think, and where `next` gives
/// the number after them write that and their name, in two statements.
pub(super) fn hold(
    program: &Program<'_>,
    start: u32,
    next: impl Fn(i64) -> Option<i64> + Sync,
) -> Result<Contest, Failure> {
    let site = program.site;
    site.state.reset(&[i64::from(start)])?;
    let (outcomes, span) = threads::all_at_once(site.sizes.threads, |user| {
        program.update(user, &[0], site.patient(), |read| {
            let number = read.first().copied()?;
            Some(vec![next(number)?])
        })
    })?;
    Ok(Contest {
        tally: Tally::of(&outcomes),
        number: site.state.read(0)?,
        recorded: site.state.recorded()?,
        span,
    })
}
