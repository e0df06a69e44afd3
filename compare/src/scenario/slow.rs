//! The work outlives the lease. Two programs, a slow one and the next one, want the same lock.
//!
//! Right, if the lease is not renewed: when the next program is let in, the slow one has been
//! notified of the loss. Its late write is refused by its token, and its late release frees no other
//! holder's lock. Right, if the lease is renewed: no program is let in until the slow one is done.
//! Without a lock, the next program comes in at any time, and the slow one overwrites its work. Locks
//! that cannot expire while their holder lives are tested only with renewal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{LeasePolicy, LostSignal};

use super::LONGEST_TTL;
use super::context::{Context, Program, RunResult, total_cost};
use crate::cancel::Latch;
use crate::error::Error;
use crate::stopwatch::Stopwatch;
use crate::strategy::lock::{Held, LockRequest};
use crate::threads::joined;

/// The ttl of the slow program's lease. A store with a longer shortest ttl uses that.
const SHORT_TTL: Duration = Duration::from_millis(300);
/// How many leases the work takes.
const WORK_TTLS: u32 = 3;
/// The ttl of the next program's lease, which must not expire, and its wait.
const LONG: Duration = LONGEST_TTL;
/// The fault of a lock without tokens, or whose tokens refuse no late write.
pub(crate) const LATE_WRITE: &str = "not renewed: the late write was let through";

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let watch = Stopwatch::start();
    let (slow, next) = (context.program()?, context.program()?);
    let short = SHORT_TTL.max(slow.lock()?.min_ttl());
    let has_fixed_lease = slow.lock()?.has_fixed_lease();
    let both = Both {
        context,
        slow,
        next,
    };
    let mut run = RunResult::default();
    if has_fixed_lease {
        both.without_renewal(short, &mut run)?;
    }
    both.with_renewal(short, &mut run)?;
    run.elapsed = watch.elapsed();
    run.cost = total_cost(&[&both.slow, &both.next])?;
    Ok(run)
}

fn renewed(ttl: Duration) -> LockRequest {
    LockRequest::new(LeasePolicy::Renewed { ttl }, LONG)
}

fn is_lost(held: &Held) -> bool {
    held.lost.as_ref().is_some_and(LostSignal::is_lost)
}

/// What an attempt with renewal says about the lock.
enum Work {
    /// The attempt counts.
    Shown,
    /// The attempt does not count: the lock was lost, and the holder was notified in time. Without notifications, or
    /// without an answer to the release, it does not count either, since the machine may have stood still.
    Lost,
}

/// Both programs.
struct Both<'a> {
    context: &'a Context<'a>,
    slow: Program<'a>,
    next: Program<'a>,
}

impl Both<'_> {
    /// Writes with the token, if there is one; returns whether the write was accepted.
    fn write(&self, held: &Held, value: i64) -> Result<bool, Error> {
        match held.token {
            Some(token) => self.context.state.write_fenced(value, token),
            None => self.context.state.write(0, value).map(|()| true),
        }
    }

    /// Runs the part without renewal. The order is fixed: the slow program works until the next one has
    /// written.
    fn without_renewal(&self, short: Duration, run: &mut RunResult) -> Result<(), Error> {
        const BEFORE: i64 = 0;
        const BY_SLOW: i64 = 1;
        const BY_NEXT: i64 = 2;
        self.context.state.reset(&[BEFORE])?;

        let fixed = LeasePolicy::Fixed { ttl: short };
        let late = self.slow.must_acquire(LockRequest::new(fixed, LONG))?;
        let holder = self.next.must_acquire(renewed(LONG))?;
        if !is_lost(&late) {
            run.fault("not renewed: another was let in, and the holder was not notified");
        }
        if self.write(&holder, BY_NEXT)? {
            run.admitted += 1;
        } else {
            run.fault("not renewed: the new holder's write was refused");
        }
        if self.write(&late, BY_SLOW)? {
            run.admitted += 1;
            run.oversold += 1;
            run.fault(LATE_WRITE);
        } else {
            run.turned_away += 1;
        }
        if self.context.state.read(0)? == BY_SLOW {
            run.fault("not renewed: the late write replaced the good one");
        }

        late.release()?;
        if let Some(third) = self.slow.acquire(renewed(LONG).without_wait())? {
            run.oversold += 1;
            run.fault("not renewed: a third was let in beside the holder");
            third.release()?;
        }
        holder.release()
    }

    /// Runs the part with renewal, and repeats it with a longer lease if the lock was lost and the holder notified.
    /// Then the machine stood still for longer than the lease, and the attempt shows nothing. For a lock that
    /// notifies no holder, the longest lease decides.
    fn with_renewal(&self, short: Duration, run: &mut RunResult) -> Result<(), Error> {
        let longest = short * 4;
        for ttl in [short, short * 2, longest] {
            if let Work::Shown = self.work_while_waited_for(ttl, ttl == longest, run)? {
                return Ok(());
            }
        }
        run.turned_away += 1;
        run.fault("renewed: the lease was lost all the same, three times");
        Ok(())
    }

    /// Works for several leases while the next program waits.
    fn work_while_waited_for(
        &self,
        ttl: Duration,
        is_last: bool,
        run: &mut RunResult,
    ) -> Result<Work, Error> {
        let state = self.context.state;
        state.reset(&[0])?;
        let held = self.slow.must_acquire(renewed(ttl))?;
        let seen = state.read(0)?;
        let (is_working, came_in) = (&AtomicBool::new(true), &Latch::new());

        let lost = held.lost.clone();
        let is_lost = || lost.as_ref().is_some_and(LostSignal::is_lost);
        let (was_notified, released, beside) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let held = self.next.must_acquire(renewed(LONG))?;
                let beside = is_working.load(Ordering::SeqCst) && !is_lost();
                came_in.open();
                self.write(&held, state.read(0)? + 1)?;
                held.release()?;
                Ok(beside)
            });
            // The work ends early if the other program came in, since that decides the result.
            self.context.cancel.wait(came_in, ttl * WORK_TTLS)?;
            if !is_lost() {
                // If this is refused, the other program came in, and the count shows it.
                self.write(&held, seen + 1)?;
            }
            let was_notified = is_lost();
            is_working.store(false, Ordering::SeqCst);
            let released = held.release();
            Ok::<_, Error>((was_notified, released, joined(other)?))
        })?;
        let may_be_late = lost.is_none() && !is_last;
        // A release waits for its answer as long as the lease lasts. If no answer came, the machine or the store stood still
        // for that long, and the attempt shows nothing. But if another was let in during the work, it shows that.
        let no_answer = released.is_err() && !beside && !is_last;
        if (was_notified && !beside) || (beside && may_be_late) || no_answer {
            return Ok(Work::Lost);
        }
        released?;

        let count = state.read(0)?;
        run.admitted += 2;
        if beside {
            run.oversold += 1;
            run.fault("renewed: another was let in during the work");
        }
        if count != 2 {
            run.fault(format!(
                "renewed: 2 jobs were done, and the count says {count}"
            ));
        }
        Ok(Work::Shown)
    }
}
