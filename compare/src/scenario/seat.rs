//! All threads book the same seat, and a thread that does not get the lock at once gives up. The
//! second run has twice as many threads as the first.
//!
//! Right: exactly one booking, each time. Half of the threads start when the first one has released
//! the lock, like later users. They must see the booking. If the lock is released before the
//! booking is committed, they do not see it, and the seat is sold again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::context::{Context, Program, RunResult, total_cost};
use crate::cancel::Latch;
use crate::error::Error;
use crate::strategy::transaction::Step;
use crate::threads::barrier_start;

/// How long a late commit is kept open if no second reader comes.
const LATE_COMMIT: Duration = Duration::from_secs(5);

/// Runs the scenario once. The numbers are those of the worse rush, the faults those of both.
pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let threads = context.settings.threads;
    let program = context.program()?;
    let first = rush(&program, threads)?;
    let second = rush(&program, threads.saturating_mul(2))?;
    let worse = match first.admitted > second.admitted {
        true => &first,
        false => &second,
    };
    Ok(RunResult {
        admitted: worse.admitted,
        turned_away: worse.turned_away,
        oversold: worse.admitted.saturating_sub(1),
        cost: total_cost(&[&program])?,
        ..first.then(second)
    })
}

fn rush(program: &Program<'_>, threads: u32) -> Result<RunResult, Error> {
    let context = program.context;
    context.state.reset(&[0])?;
    let (first_released, second_read) = (Latch::new(), Latch::new());
    let readers = AtomicU64::new(0);
    let early = AtomicU64::new(u64::from(threads - threads / 2));
    let book = |user: u32| {
        let is_early = user >= threads / 2;
        if !is_early {
            context.cancel.wait(&first_released, Duration::MAX)?;
        }
        let outcome = program.execute(
            user,
            &[0],
            context.long_wait().without_wait(),
            |read| (read.first() == Some(&0)).then(|| vec![1]),
            |step| {
                match step {
                    Step::Granted(_) => {}
                    Step::Read => {
                        if readers.fetch_add(1, Ordering::SeqCst) == 1 {
                            second_read.open();
                        }
                    }
                    Step::Released => first_released.open(),
                    // A commit takes its time: here, until a second thread has read the old data.
                    Step::LateCommit => {
                        context.cancel.wait(&second_read, LATE_COMMIT)?;
                    }
                }
                Ok(())
            },
        );
        // In case no early thread got the lock, or its transaction failed.
        if is_early && early.fetch_sub(1, Ordering::SeqCst) == 1 {
            first_released.open();
        }
        outcome
    };
    let (outcomes, elapsed) = barrier_start(threads, book)?;

    let mut run = RunResult::of(&outcomes, elapsed);
    let (promised, booked) = (run.admitted, context.state.recorded()?);
    if promised != 1 {
        run.fault(format!("{promised} were promised the seat"));
    }
    if booked != 1 || context.state.read(0)? != 1 {
        run.fault(format!("{booked} bookings for one seat"));
    }
    Ok(run.about(&format!("{threads} threads: ")))
}
