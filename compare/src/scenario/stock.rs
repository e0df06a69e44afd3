//! Buyers each take one item: first there are fewer items than buyers, then more.
//!
//! Right: sold is the smaller of the two, the stock is what is left, and never below zero.
//! Without a lock, buyers who read the same stock sell the same item; with items for all, the
//! stock then says that there are more left than there are.

use super::contest::{self, Contest};
use super::context::{Program, Run, Site, settle};
use crate::error::Failure;

/// Plays it once: the rush, then with plenty. The numbers are the rush's, the faults both's.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let (scarce, mut run) = (site.sizes.items, Run::default());
    let program = site.program()?;
    let rush = sale(&program, scarce, &mut run)?;
    let plenty = sale(
        &program,
        scarce.saturating_add(site.sizes.threads),
        &mut run,
    )?;
    run.admitted = rush.tally.admitted;
    run.turned_away = rush.tally.turned_away;
    run.span = rush.span + plenty.span;
    run.account = settle([program])?;
    Ok(run)
}

fn sale(program: &Program<'_>, items: u32, run: &mut Run) -> Result<Contest, Failure> {
    let buyers = program.site.sizes.threads;
    let end = contest::hold(program, items, |stock| (stock > 0).then_some(stock - 1))?;

    let what = format!("{buyers} buyers, {items} items");
    let (told, sold, right) = (end.tally.admitted, end.recorded, buyers.min(items));
    run.oversold += told.saturating_sub(u64::from(right));
    end.tally.add_faults(&format!("{what}: "), run);
    run.fault_if(sold != i64::from(right), || {
        format!("{what}: {sold} sold instead of {right}")
    });
    run.fault_if(i64::try_from(told) != Ok(sold), || {
        format!("{what}: {told} told so, {sold} recorded")
    });
    run.fault_if(end.number < 0, || {
        format!("{what}: the stock fell to {}", end.number)
    });
    run.fault_if(end.number != i64::from(items) - sold, || {
        format!("{what}: {sold} sold, and the stock says {}", end.number)
    });
    Ok(end)
}
