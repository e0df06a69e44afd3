//! The work outlives the lease. Two programs, a slow one and the next one, want the same lock.
//!
//! Right, if the lease is not renewed: when the next program is let in, the slow one has been
//! notified of the loss. Its late write is refused by its token, and its late release frees no
//! other holder's lock. Right, if the lease is renewed: no program is let in until the slow one is
//! done. Without a lock, the next program comes in at any time, and the slow one overwrites its work.
//! Locks that cannot expire while their holder lives have only the second part.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::LeasePolicy;

use super::context::{Context, Program, RunResult, total_cost};
use crate::cancel::Latch;
use crate::error::Error;
use crate::stopwatch::Stopwatch;
use crate::strategy::lock::{Held, LockRequest};
use crate::threads::joined;

/// The ttl of the slow program's lease, if the store can have it so short.
const SHORT_TTL: Duration = Duration::from_millis(300);
/// How many leases the work takes.
const WORK_TTLS: u32 = 3;
/// The ttl of the next program's lease, which must not expire, and its wait.
const LONG: Duration = Duration::from_secs(30);

/// Runs the scenario once.
pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let watch = Stopwatch::start();
    let (slow, next) = (context.program()?, context.program()?);
    let short = SHORT_TTL.max(slow.lock()?.min_ttl());
    let mut run = RunResult::default();
    if slow.lock()?.has_fixed_lease() {
        without_renewal(context, &slow, &next, short, &mut run)?;
    }
    with_renewal(context, &slow, &next, short, &mut run)?;
    run.elapsed = watch.elapsed();
    run.cost = total_cost(&[&slow, &next])?;
    Ok(run)
}

fn renewed(ttl: Duration) -> LockRequest {
    LockRequest::new(LeasePolicy::Renewed { ttl }, LONG)
}

/// Writes with the token, if there is one; returns whether the write was accepted.
fn write(context: &Context<'_>, held: &dyn Held, value: i64) -> Result<bool, Error> {
    match held.token() {
        Some(token) => context.state.write_fenced(value, token),
        None => context.state.write(0, value).map(|()| true),
    }
}

/// Runs events in a fixed order: the slow program works until the next one has written.
fn without_renewal(
    context: &Context<'_>,
    slow: &Program<'_>,
    next: &Program<'_>,
    short: Duration,
    run: &mut RunResult,
) -> Result<(), Error> {
    const BEFORE: i64 = 0;
    const BY_SLOW: i64 = 1;
    const BY_NEXT: i64 = 2;
    context.state.reset(&[BEFORE])?;

    let fixed = LeasePolicy::Fixed { ttl: short };
    let late = slow.must_acquire(LockRequest::new(fixed, LONG))?;
    let holder = next.must_acquire(renewed(LONG))?;
    if !late.lost_signal()() {
        run.fault("not renewed: another was let in, and the holder was not notified");
    }
    if write(context, holder.as_ref(), BY_NEXT)? {
        run.admitted += 1;
    } else {
        run.fault("not renewed: the new holder's write was refused");
    }
    if write(context, late.as_ref(), BY_SLOW)? {
        run.admitted += 1;
        run.oversold += 1;
        run.fault("not renewed: the late write was let through");
    } else {
        run.turned_away += 1;
    }
    if context.state.read(0)? == BY_SLOW {
        run.fault("not renewed: the late write replaced the good one");
    }

    late.release()?;
    if let Some(third) = slow.acquire(renewed(LONG).without_wait())? {
        run.oversold += 1;
        run.fault("not renewed: a third was let in beside the holder");
        third.release()?;
    }
    holder.release()
}

/// Repeats the second part with a longer lease if the lock was lost and the holder notified: on a machine
/// that stood still for longer than the lease, nothing was shown.
fn with_renewal(
    context: &Context<'_>,
    slow: &Program<'_>,
    next: &Program<'_>,
    short: Duration,
    run: &mut RunResult,
) -> Result<(), Error> {
    for ttl in [short, short * 2, short * 4] {
        if let Work::Shown = work_while_waited_for(context, slow, next, ttl, run)? {
            return Ok(());
        }
    }
    run.turned_away += 1;
    run.fault("renewed: the lease was lost all the same, three times");
    Ok(())
}

/// What a try of the second part says about the lock.
enum Work {
    /// The try counts.
    Shown,
    /// The lock was lost and the holder was notified in time, so the try does not count.
    Lost,
}

/// Works for several leases while the next program waits.
fn work_while_waited_for(
    context: &Context<'_>,
    slow: &Program<'_>,
    next: &Program<'_>,
    ttl: Duration,
    run: &mut RunResult,
) -> Result<Work, Error> {
    context.state.reset(&[0])?;
    let held = slow.must_acquire(renewed(ttl))?;
    let seen = context.state.read(0)?;
    let (lost, is_working, came_in) = (held.lost_signal(), AtomicBool::new(true), Latch::new());

    let (was_notified, beside) = thread::scope(|scope| {
        let (is_working, came_in) = (&is_working, &came_in);
        let other = scope.spawn(move || {
            let held = next.must_acquire(renewed(LONG))?;
            let beside = is_working.load(Ordering::SeqCst) && !lost();
            came_in.open();
            write(context, held.as_ref(), context.state.read(0)? + 1)?;
            held.release()?;
            Ok(beside)
        });
        // The work ends early if the other program came in: there is nothing more to see.
        context.cancel.wait(came_in, ttl * WORK_TTLS)?;
        let lost = held.lost_signal();
        if !lost() {
            // If this is refused, the other program came in, and the count shows it.
            write(context, held.as_ref(), seen + 1)?;
        }
        let was_notified = lost();
        is_working.store(false, Ordering::SeqCst);
        held.release()?;
        Ok::<_, Error>((was_notified, joined(other)?))
    })?;
    if was_notified && !beside {
        return Ok(Work::Lost);
    }

    run.admitted += 2;
    if beside {
        run.oversold += 1;
        run.fault("renewed: another was let in during the work");
    }
    let count = context.state.read(0)?;
    run.fault_if(
        count != 2,
        format!("renewed: 2 jobs were done, and the count says {count}"),
    );
    Ok(Work::Shown)
}
