//! Everybody books the same seat, and who does not get the lock at once gives up: first as many as
//! there are threads, then twice as many.
//!
//! Right: exactly one booking, each time. Half of them come when the first one has let the lock go,
//! as people do who are a moment later: they must see the booking. Where the lock is freed before
//! the booking is committed, they do not, and the seat is sold again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::contest::Tally;
use super::context::{Program, Run, Site, settle};
use crate::error::Failure;
use crate::stopwatch::Span;
use crate::strategy::Moment;
use crate::threads;

/// A late commit is not kept open for longer, should nobody come.
const COMMIT: Duration = Duration::from_secs(5);
/// How often somebody who waits for others looks whether the run was interrupted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Plays it once. The numbers are those of the worse rush, the faults both's.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let (threads, mut run) = (site.sizes.threads, Run::default());
    let program = site.program()?;
    let (once, span) = rush(&program, threads, &mut run)?;
    let (twice, more) = rush(&program, threads.saturating_mul(2), &mut run)?;
    let worse = if once.admitted > twice.admitted {
        once
    } else {
        twice
    };
    run.admitted = worse.admitted;
    run.turned_away = worse.turned_away;
    run.oversold = run.admitted.saturating_sub(1);
    run.span = span + more;
    run.account = settle([program])?;
    Ok(run)
}

fn rush(program: &Program<'_>, threads: u32, run: &mut Run) -> Result<(Tally, Span), Failure> {
    let site = program.site;
    site.state.reset(&[0])?;
    let (late, readers) = (Latch::default(), AtomicU64::new(0));
    let early = AtomicU64::new(u64::from(threads - threads / 2));
    let book = |user: u32| {
        let is_early = user >= threads / 2;
        if !is_early {
            late.pass(site)?;
        }
        let outcome = program.update_and_tell(
            user,
            &[0],
            site.patient().at_once(),
            |read| (read.first() == Some(&0)).then(|| vec![1]),
            |moment| {
                match moment {
                    Moment::Read => _ = readers.fetch_add(1, Ordering::SeqCst),
                    Moment::Freed => late.open(),
                    // A commit takes its time; here, until somebody has read what was before it.
                    Moment::LateCommit => keep_open(site, &readers)?,
                    Moment::Granted(_) => {}
                }
                Ok(())
            },
        );
        // Should none of them have got the lock, or should it have failed.
        if is_early && early.fetch_sub(1, Ordering::SeqCst) == 1 {
            late.open();
        }
        outcome
    };
    let (outcomes, span) = threads::all_at_once(threads, book)?;

    let tally = Tally::of(&outcomes);
    let (booked, seat) = (site.state.recorded()?, site.state.read(0)?);
    tally.add_faults(&format!("{threads} threads: "), run);
    run.fault_if(tally.admitted != 1, || {
        format!(
            "{threads} threads: {} were told that the seat is theirs",
            tally.admitted
        )
    });
    run.fault_if(booked != 1 || seat != 1, || {
        format!("{threads} threads: {booked} bookings for one seat")
    });
    Ok((tally, span))
}

/// Until a second reader has come.
fn keep_open(site: &Site<'_>, readers: &AtomicU64) -> Result<(), Failure> {
    let begun = Instant::now();
    while readers.load(Ordering::SeqCst) < 2 && begun.elapsed() < COMMIT {
        site.think(Duration::from_millis(1))?;
    }
    Ok(())
}

/// A door that opens once.
#[derive(Default)]
struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    fn pass(&self, site: &Site<'_>) -> Result<(), Failure> {
        let mut is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_open {
            if site.stop.is_cancelled() {
                return Err(Failure::Interrupted);
            }
            let waited = self.opened.wait_timeout(is_open, LOOK_UP);
            is_open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}
