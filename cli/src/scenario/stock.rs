//! Buyers each take one item: first there are fewer items than buyers, then more.
//!
//! Right: sold is the smaller of the two, the stock is what is left, and never below zero.
//! Without a lock, buyers who read the same stock sell the same item; with items for all, the
//! stock then says that there are more left than there are.

use super::{Run, Site, contest};
use crate::failure::Failure;
use crate::stopwatch::Span;

/// Plays it once: the rush, then with plenty. The numbers are the rush's, the faults both's.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let scarce = site.sizes.items;
    let rush = sale(site, scarce)?;
    let plenty = sale(site, scarce.saturating_add(site.sizes.threads))?;
    let mut run = rush;
    run.faults.extend(plenty.faults);
    run.oversold += plenty.oversold;
    run.span = Span {
        elapsed: run.span.elapsed + plenty.span.elapsed,
        cpu: run.span.cpu.zip(plenty.span.cpu).map(|(a, b)| a + b),
    };
    run.account = run.account.with(plenty.account, false);
    Ok(run)
}

fn sale(site: &Site<'_>, items: u32) -> Result<Run, Failure> {
    let buyers = site.sizes.threads;
    let end = contest::hold(site, items, |stock| (stock > 0).then_some(stock - 1))?;

    let what = format!("{buyers} buyers, {items} items");
    let (sold, right) = (end.recorded, i64::from(buyers.min(items)));
    let mut faults = Vec::new();
    if sold != right {
        faults.push(format!("{what}: {sold} sold instead of {right}"));
    }
    if i64::try_from(end.admitted) != Ok(sold) {
        faults.push(format!("{what}: {} told so, {sold} recorded", end.admitted));
    }
    if end.number < 0 {
        faults.push(format!("{what}: the stock fell to {}", end.number));
    }
    if end.number != i64::from(items) - sold {
        faults.push(format!(
            "{what}: {sold} sold, and the stock says {}",
            end.number
        ));
    }
    Ok(Run {
        admitted: end.admitted,
        turned_away: end.turned_away,
        oversold: end.admitted.saturating_sub(u64::from(buyers.min(items))),
        faults,
        span: end.span,
        account: end.account,
    })
}
