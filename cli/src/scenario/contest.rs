//! What `gather` and `stock` share: many threads want something of which there are few.

use std::time::Duration;

use lockkeeper::LeasePolicy;

use super::{Account, Program, Site};
use crate::crew;
use crate::failure::Failure;
use crate::stopwatch::Span;
use crate::strategy::Terms;

/// Long enough that no lease ends by itself.
const TTL: Duration = Duration::from_secs(30);
/// Beside the time that all others hold the lock: for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a contest ended.
pub(super) struct Contest {
    /// Threads that were told that they have one.
    pub(super) admitted: u64,
    /// Threads that were not.
    pub(super) turned_away: u64,
    /// The number at the end.
    pub(super) number: i64,
    /// How many users are recorded.
    pub(super) recorded: i64,
    /// How long it took.
    pub(super) span: Span,
    /// What the locking cost.
    pub(super) account: Account,
}

/// All threads at once: read the number, which is `start` at first, think, and where `next` gives
/// the number after them write that and their name, in two statements.
pub(super) fn hold(
    site: &Site<'_>,
    start: u32,
    next: impl Fn(i64) -> Option<i64> + Sync,
) -> Result<Contest, Failure> {
    let state = site.state;
    state.reset(i64::from(start))?;
    let program = Program::open(site)?;
    let terms = Terms {
        lease: LeasePolicy::Renewed {
            ttl: TTL.max(program.strategy.least_ttl()),
        },
        wait: PATIENCE + (site.sizes.held + Duration::from_millis(10)) * 2 * site.sizes.threads,
    };

    let (admitted, span) = crew::all_at_once(site.sizes.threads, |user| {
        let Some(held) = program.take(terms)? else {
            return Ok(false);
        };
        let number = state.read()?;
        site.think(site.sizes.held)?;
        let after = next(number);
        if let Some(after) = after {
            state.write(after)?;
            state.record(user)?;
        }
        held.release()?;
        Ok(after.is_some())
    })?;

    let [mut yes, mut no] = [0, 0];
    for admitted in admitted {
        *(if admitted { &mut yes } else { &mut no }) += 1;
    }
    Ok(Contest {
        admitted: yes,
        turned_away: no,
        number: state.read()?,
        recorded: state.recorded()?,
        span,
        account: program.settle(),
    })
}
