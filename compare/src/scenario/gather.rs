//! Many threads ask to join a gathering with few seats, all at once.
//!
//! Right: as many get in as there are seats, the count agrees, and as many users are recorded.
//! Without a lock, every thread that reads the count before the others have written theirs gets in.

use super::contest::Contest;
use super::context::{Context, RunResult, total_cost};
use crate::error::Error;

/// Runs the scenario once.
pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let seats = u64::from(context.sizes.seats);
    let limit = i64::from(context.sizes.seats);
    let program = context.program()?;
    let end = Contest::run(&program, 0, |count| (count < limit).then_some(count + 1))?;

    let admitted = end.counts.admitted;
    let mut run = RunResult {
        admitted,
        turned_away: end.counts.turned_away,
        oversold: admitted.saturating_sub(seats),
        elapsed: end.elapsed,
        cost: total_cost(&[&program])?,
        ..RunResult::default()
    };
    end.counts.add_faults("", &mut run);
    run.fault_if(admitted != seats, || {
        format!("{admitted} got in, for {seats} seats")
    });
    run.fault_if(end.number != limit, || {
        format!("the count says {} of {seats}", end.number)
    });
    run.fault_if(end.recorded != limit, || {
        format!("{} users are recorded for {seats} seats", end.recorded)
    });
    Ok(run)
}
