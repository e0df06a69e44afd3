//! Many threads ask for few seats, all at once.
//!
//! Right: as many get in as there are seats, the count agrees, and as many users are recorded.
//! Without a lock, every thread that reads the count before the others have written theirs gets in.

use super::contest::Contest;
use super::context::{Context, RunResult, total_cost};
use crate::error::Error;

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let seats = context.settings.seats;
    let limit = i64::from(seats);
    let program = context.program()?;
    let Contest {
        mut run,
        number,
        recorded,
    } = Contest::run(&program, 0, |count| (count < limit).then_some(count + 1))?;

    let admitted = run.admitted;
    run.cost = total_cost(&[&program])?;
    run.oversold = admitted.saturating_sub(u64::from(seats));
    if admitted != u64::from(seats) {
        run.fault(format!("{admitted} got in, for {seats} seats"));
    }
    if number != limit {
        run.fault(format!("the count says {number} of {seats}"));
    }
    if recorded != limit {
        run.fault(format!("{recorded} users are recorded for {seats} seats"));
    }
    Ok(run)
}
