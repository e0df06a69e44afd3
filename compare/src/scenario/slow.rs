//! The work outlives the lease. Two programs, a slow one and the next one, want the same lock.
//!
//! Right, where the lease is not renewed: when the next one is let in, the slow one has been told
//! that it lost the lock; its late write is refused by its token, and its late release frees
//! nobody else's lock. Right, where it is renewed: nobody is let in until the slow one is done.
//! Without a lock, the next one comes in at any time, and the slow one overwrites its work.
//! Locks that cannot run out while their holder lives have only the second part.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper::LeasePolicy;

use super::context::{Program, Run, Site, settle};
use crate::error::Failure;
use crate::stopwatch::Stopwatch;
use crate::strategy::{Held, Terms};
use crate::threads::panicked;

/// The lease that the slow one outlives, where the store can have it so short.
const SHORT: Duration = Duration::from_millis(300);
/// The work takes this many leases.
const OUTLIVES: u32 = 3;
/// Lease of the next one, whose lock must not end by itself; and how long it waits at most.
const LONG: Duration = Duration::from_secs(30);

/// Plays it once.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let watch = Stopwatch::start();
    let (slow, next) = (site.program()?, site.program()?);
    let short = SHORT.max(slow.lock()?.least_ttl());
    let mut run = Run::default();
    if slow.lock()?.has_fixed_lease() {
        without_renewal(site, &slow, &next, short, &mut run)?;
    }
    with_renewal(site, &slow, &next, short, &mut run)?;
    run.span = watch.read();
    run.account = settle([slow, next])?;
    Ok(run)
}

/// The next one waits with all its patience.
fn patient(lease: LeasePolicy) -> Terms {
    Terms {
        lease,
        wait: LONG,
        again: false,
    }
}

/// Writes under the token, where there is one; says whether it was let.
fn write(site: &Site<'_>, held: &dyn Held, value: i64) -> Result<bool, Failure> {
    match held.token() {
        Some(token) => site.state.write_fenced(value, token),
        None => site.state.write(0, value).map(|()| true),
    }
}

/// The order of events is fixed: the slow one works until the next one has written.
fn without_renewal(
    site: &Site<'_>,
    slow: &Program<'_>,
    next: &Program<'_>,
    short: Duration,
    run: &mut Run,
) -> Result<(), Failure> {
    const BEFORE: i64 = 0;
    const BY_THE_SLOW: i64 = 1;
    const BY_THE_NEXT: i64 = 2;
    site.state.reset(&[BEFORE])?;

    let late = slow.must_take(patient(LeasePolicy::Fixed { ttl: short }))?;
    let holder = next.must_take(patient(LeasePolicy::Renewed { ttl: LONG }))?;
    if !late.lost()() {
        let fault = "not renewed: another was let in, and the holder was not told";
        run.faults.push(fault.to_owned());
    }
    if write(site, holder.as_ref(), BY_THE_NEXT)? {
        run.admitted += 1;
    } else {
        run.faults
            .push("not renewed: the new holder's write was refused".to_owned());
    }
    if write(site, late.as_ref(), BY_THE_SLOW)? {
        run.admitted += 1;
        run.oversold += 1;
        run.faults
            .push("not renewed: the late write was let through".to_owned());
    } else {
        run.turned_away += 1;
    }
    let last = site.state.read(0)?;
    if last == BY_THE_SLOW {
        run.faults
            .push("not renewed: the late write replaced the good one".to_owned());
    }

    late.release()?;
    let at_once = patient(LeasePolicy::Renewed { ttl: LONG }).at_once();
    if let Some(third) = slow.take(at_once)? {
        run.oversold += 1;
        run.faults
            .push("not renewed: a third was let in beside the holder".to_owned());
        third.release()?;
    }
    holder.release()
}

/// A machine that stands still for longer than the lease loses it, and the holder is told: then
/// nothing was shown, and it is tried again with a longer one.
fn with_renewal(
    site: &Site<'_>,
    slow: &Program<'_>,
    next: &Program<'_>,
    short: Duration,
    run: &mut Run,
) -> Result<(), Failure> {
    for ttl in [short, short * 2, short * 4] {
        if exclusive(site, slow, next, ttl, run)? {
            return Ok(());
        }
    }
    run.turned_away += 1;
    let fault = "renewed: the lease was lost all the same, three times";
    run.faults.push(fault.to_owned());
    Ok(())
}

/// Works for several leases while the next one waits; false where the lock was lost, and the
/// holder told in time.
fn exclusive(
    site: &Site<'_>,
    slow: &Program<'_>,
    next: &Program<'_>,
    ttl: Duration,
    run: &mut Run,
) -> Result<bool, Failure> {
    site.state.reset(&[0])?;
    let held = slow.must_take(patient(LeasePolicy::Renewed { ttl }))?;
    let seen = site.state.read(0)?;
    let (lost, at_work) = (held.lost(), AtomicBool::new(true));

    let (told, beside) = thread::scope(|scope| {
        let (came_in, waiting) = mpsc::channel();
        let at_work = &at_work;
        let other = scope.spawn(move || {
            let held = next.must_take(patient(LeasePolicy::Renewed { ttl: LONG }))?;
            let beside = at_work.load(Ordering::SeqCst) && !lost();
            // Where nobody listens any more, the work is over.
            let _ = came_in.send(());
            write(site, held.as_ref(), site.state.read(0)? + 1)?;
            held.release()?;
            Ok(beside)
        });
        let told = work_and_write(site, held, seen, ttl * OUTLIVES, &waiting, at_work);
        let beside = other
            .join()
            .unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
        Ok::<_, Failure>((told?, beside?))
    })?;
    if told && !beside {
        return Ok(false);
    }

    run.admitted += 2;
    if beside {
        run.oversold += 1;
        let fault = "renewed: another was let in during the work";
        run.faults.push(fault.to_owned());
    }
    let count = site.state.read(0)?;
    if count != 2 {
        let fault = format!("renewed: 2 jobs were done, and the count says {count}");
        run.faults.push(fault);
    }
    Ok(true)
}

/// Ends the work early when somebody came in: that is all there is to see. True: it was told that
/// it lost the lock.
fn work_and_write(
    site: &Site<'_>,
    held: Box<dyn Held>,
    seen: i64,
    work: Duration,
    waiting: &mpsc::Receiver<()>,
    at_work: &AtomicBool,
) -> Result<bool, Failure> {
    // Somebody came in, somebody gave up, or the time is over: all three end the work.
    let _ = waiting.recv_timeout(work);
    if site.stop.is_cancelled() {
        return Err(Failure::Interrupted);
    }
    let lost = held.lost();
    if !lost() {
        // Refused: then somebody came in, and the count will tell.
        write(site, held.as_ref(), seen + 1)?;
    }
    let told = lost();
    at_work.store(false, Ordering::SeqCst);
    held.release()?;
    Ok(told)
}
