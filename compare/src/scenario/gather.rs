//! Many threads ask to join a gathering with few seats, all at once.
//!
//! Right: as many get in as there are seats, the count says so, and so many users are recorded.
//! Without a lock, everyone who reads the count before the others have written theirs gets in.

use super::contest;
use super::context::{Run, Site, settle};
use crate::error::Failure;

/// Plays it once.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let seats = u64::from(site.sizes.seats);
    let limit = i64::from(site.sizes.seats);
    let program = site.program()?;
    let end = contest::hold(&program, 0, |count| (count < limit).then_some(count + 1))?;

    let admitted = end.tally.admitted;
    let mut run = Run {
        admitted,
        turned_away: end.tally.turned_away,
        oversold: admitted.saturating_sub(seats),
        span: end.span,
        account: settle([program])?,
        ..Run::default()
    };
    end.tally.add_faults("", &mut run);
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
