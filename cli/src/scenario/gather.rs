//! Many threads ask to join a gathering with few seats, all at once.
//!
//! Right: as many get in as there are seats, the count says so, and so many users are recorded.
//! Without a lock, everyone who reads the count before the others have written theirs gets in.

use super::{Run, Site, contest};
use crate::failure::Failure;

/// Plays it once.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let seats = u64::from(site.sizes.seats);
    let limit = i64::from(site.sizes.seats);
    let end = contest::hold(site, 0, |count| (count < limit).then_some(count + 1))?;

    let mut faults = Vec::new();
    if end.admitted != seats {
        faults.push(format!("{} got in, for {seats} seats", end.admitted));
    }
    if end.number != limit {
        faults.push(format!("the count says {} of {seats}", end.number));
    }
    if end.recorded != limit {
        faults.push(format!(
            "{} users are recorded for {seats} seats",
            end.recorded
        ));
    }
    Ok(Run {
        admitted: end.admitted,
        turned_away: end.turned_away,
        oversold: end.admitted.saturating_sub(seats),
        faults,
        span: end.span,
        account: end.account,
    })
}
