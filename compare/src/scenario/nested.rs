//! A service that holds the product's lock calls another service that takes the same lock again,
//! on the same thread. Meanwhile somebody else wants it, too.
//!
//! Right: the second one gets it, nothing stands still, and the lock is free only when the first
//! service is done: until then the other is not let in.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::context::{Program, Run, Site, settle};
use crate::error::Failure;
use crate::stopwatch::Stopwatch;
use crate::strategy::Terms;
use crate::threads::panicked;

/// The second service waits no longer: its own caller holds the lock.
const INNER_WAIT: Duration = Duration::from_millis(500);
/// The first service goes on for so long after the second: time enough for the other to come in,
/// if the lock lets it.
const STAY: Duration = Duration::from_millis(300);

/// Plays it once.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let program = site.program()?;
    let watch = Stopwatch::start();
    site.state.reset(&[0])?;
    let mut run = Run::default();
    let terms = Terms {
        again: true,
        ..site.patient()
    };

    let outer = program.must_take(terms)?;
    let (came_in, other) = mpsc::channel();
    thread::scope(|scope| {
        let program = &program;
        let waiting = scope.spawn(move || {
            let held = program.must_take(terms)?;
            // Where nobody listens any more, the first service is done.
            let _ = came_in.send(());
            count_one(site)?;
            held.release()
        });
        inner(program, terms, &mut run)?;
        if let Ok(()) = other.recv_timeout(STAY) {
            run.oversold += 1;
            let fault = "another was let in before the outermost was done";
            run.faults.push(fault.to_owned());
        }
        count_one(site)?;
        outer.release()?;
        waiting
            .join()
            .unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
    })?;
    run.admitted += 2;
    run.span = watch.read();
    run.account = settle([program])?;
    Ok(run)
}

/// The second service.
fn inner(program: &Program<'_>, terms: Terms, run: &mut Run) -> Result<(), Failure> {
    let inner = program.take(Terms {
        wait: INNER_WAIT,
        ..terms
    })?;
    match inner {
        Some(held) => {
            run.admitted += 1;
            count_one(program.site)?;
            held.release()
        }
        None => {
            run.turned_away += 1;
            let fault = format!(
                "the thread that holds the lock waited {INNER_WAIT:?} for itself, and in vain"
            );
            run.faults.push(fault);
            Ok(())
        }
    }
}

fn count_one(site: &Site<'_>) -> Result<(), Failure> {
    let count = site.state.read(0)?;
    site.think(site.sizes.held)?;
    site.state.write(0, count + 1)
}
