//! A service that holds the product's lock calls another service that acquires the same lock again,
//! on the same thread. Meanwhile another thread wants it, too.
//!
//! Right: the second service gets the lock, and nothing deadlocks. The other thread gets in only
//! when the first service is done.

use std::thread;
use std::time::Duration;

use super::context::{Context, Program, RunResult, total_cost};
use crate::cancel::Latch;
use crate::error::Error;
use crate::stopwatch::Stopwatch;
use crate::strategy::lock::LockRequest;
use crate::threads::joined;

/// How long the second service waits for the lock, which its own caller holds.
const INNER_WAIT: Duration = Duration::from_millis(500);
/// How long the first service goes on after the second one: enough for the other thread to come in,
/// if the lock lets it.
const OUTER_WORK: Duration = Duration::from_millis(300);

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let program = context.program()?;
    let watch = Stopwatch::start();
    context.state.reset(&[0])?;
    let mut run = RunResult::default();
    let request = LockRequest {
        reentrant: true,
        ..context.long_wait()
    };

    let outer = program.must_acquire(request)?;
    let came_in = Latch::new();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let held = program.must_acquire(request)?;
            came_in.open();
            increment(context)?;
            held.release()
        });
        inner(&program, request, &mut run)?;
        if context.cancel.wait(&came_in, OUTER_WORK)? {
            run.oversold += 1;
            run.fault("another was let in before the outermost was done");
        }
        increment(context)?;
        outer.release()?;
        joined(other)
    })?;
    run.admitted += 2;
    run.elapsed = watch.elapsed();
    run.cost = total_cost(&[&program])?;
    Ok(run)
}

/// Is the second service.
fn inner(program: &Program<'_>, request: LockRequest, run: &mut RunResult) -> Result<(), Error> {
    let inner = program.acquire(LockRequest {
        wait: INNER_WAIT,
        ..request
    })?;
    match inner {
        Some(held) => {
            run.admitted += 1;
            increment(program.context)?;
            held.release()
        }
        None => {
            run.turned_away += 1;
            run.fault(format!(
                "the thread that holds the lock waited {INNER_WAIT:?} for itself, and in vain"
            ));
            Ok(())
        }
    }
}

fn increment(context: &Context<'_>) -> Result<(), Error> {
    let count = context.state.read(0)?;
    context.cancel.sleep(context.settings.held)?;
    context.state.write(0, count + 1)
}
