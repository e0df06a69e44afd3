//! Buyers each take one item: first there are fewer items than buyers, then more.
//!
//! Right: sold is the smaller of the two, the stock is what is left, and never below zero. Without a
//! lock, buyers that read the same stock buy the same item. With items for all, the stock then says
//! that more are left than there are.

use super::contest::Contest;
use super::context::{Context, Program, RunResult, total_cost};
use crate::error::Error;

/// Runs the scenario once: a sale with few items, then one with plenty. The numbers are those of the
/// first sale, the faults those of both.
pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let few = context.settings.items;
    let plenty = few.saturating_add(context.settings.threads);
    let program = context.program()?;
    let (first, second) = (sell(&program, few)?, sell(&program, plenty)?);
    Ok(RunResult {
        cost: total_cost(&[&program])?,
        ..first.then(second)
    })
}

fn sell(program: &Program<'_>, items: u32) -> Result<RunResult, Error> {
    let buyers = program.context.settings.threads;
    let Contest {
        mut run,
        number,
        recorded: sold,
    } = Contest::run(program, items, |stock| (stock > 0).then_some(stock - 1))?;

    let (claimed, right) = (run.admitted, buyers.min(items));
    run.oversold = claimed.saturating_sub(u64::from(right));
    if sold != i64::from(right) {
        run.fault(format!("{sold} sold instead of {right}"));
    }
    if i64::try_from(claimed) != Ok(sold) {
        run.fault(format!(
            "{claimed} buyers were promised an item, {sold} are recorded"
        ));
    }
    if number < 0 {
        run.fault(format!("the stock fell to {number}"));
    }
    if number != i64::from(items) - sold {
        run.fault(format!("{sold} sold, and the stock says {number}"));
    }
    Ok(run.about(&format!("{buyers} buyers, {items} items: ")))
}
