//! Buyers each take one item: first there are fewer items than buyers, then more.
//!
//! Right: sold is the smaller of the two, the stock is what is left, and never below zero. Without a
//! lock, buyers who read the same stock sell the same item. With items for all, the stock then says
//! that more are left than there are.

use super::contest::Contest;
use super::context::{Context, Program, RunResult, total_cost};
use crate::error::Error;

/// Runs the scenario once: a sale with few items, then one with plenty. The numbers are those of the
/// first sale, the faults those of both.
pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let (few, mut run) = (context.sizes.items, RunResult::default());
    let plenty = few.saturating_add(context.sizes.threads);
    let program = context.program()?;
    let first = sell(&program, few, &mut run)?;
    let second = sell(&program, plenty, &mut run)?;
    run.admitted = first.counts.admitted;
    run.turned_away = first.counts.turned_away;
    run.elapsed = first.elapsed + second.elapsed;
    run.cost = total_cost(&[&program])?;
    Ok(run)
}

fn sell(program: &Program<'_>, items: u32, run: &mut RunResult) -> Result<Contest, Error> {
    let buyers = program.context.sizes.threads;
    let end = Contest::run(program, items, |stock| (stock > 0).then_some(stock - 1))?;

    let what = format!("{buyers} buyers, {items} items");
    let (claimed, sold, right) = (end.counts.admitted, end.recorded, buyers.min(items));
    run.oversold += claimed.saturating_sub(u64::from(right));
    end.counts.add_faults(&format!("{what}: "), run);
    run.fault_if(sold != i64::from(right), || {
        format!("{what}: {sold} sold instead of {right}")
    });
    run.fault_if(i64::try_from(claimed) != Ok(sold), || {
        format!("{what}: {claimed} buyers were promised an item, {sold} are recorded")
    });
    run.fault_if(end.number < 0, || {
        format!("{what}: the stock fell to {}", end.number)
    });
    run.fault_if(end.number != i64::from(items) - sold, || {
        format!("{what}: {sold} sold, and the stock says {}", end.number)
    });
    Ok(end)
}
