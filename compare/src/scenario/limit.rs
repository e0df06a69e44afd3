//! Threads of three programs want one of five permits, and a fourth program is killed while it holds two.
//! The fourth program is a real process; on a store that only one process can see, it is a thread that
//! panics.
//!
//! Right: never more than five threads hold a permit, and every thread gets in. All five permits are in use
//! again within ttl + 1 s after the holder's death, as in [`crash`](super::crash). The threads that get in first stay until then, so only
//! the permits of the dead process can become free.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::context::{Context, Program, RunResult, total_cost};
use super::crash::TTL;
use crate::cancel::Latch;
use crate::error::Error;
use crate::holder::{Hold, Holder};
use crate::strategy::lock::LockRequest;
use crate::threads::{barrier_start, joined};
use lockkeeper::Mode;

/// The limit of the permits.
pub(crate) const LIMIT: u32 = 5;
/// The permits of the holder that is killed.
pub(crate) const KILLED: u32 = 2;
/// Programs of which the threads take part.
const PROGRAMS: u32 = 3;
/// The smallest number of threads: enough for all permits, and as many that wait.
const MIN_THREADS: u32 = 2 * LIMIT;
/// How long a thread works, in pauses of the settings.
const WORK: u32 = 10;

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let threads = context.settings.threads.max(MIN_THREADS);
    let programs = (0..PROGRAMS).map(|_| context.program_of(threads.div_ceil(PROGRAMS)));
    let programs = programs.collect::<Result<Vec<_>, _>>()?;
    let all: Vec<_> = programs.iter().collect();
    let ttl = match all.first() {
        Some(program) => TTL.max(program.lock()?.min_ttl()),
        None => TTL,
    };
    let limit = ttl + context.grace;
    let hold = Hold::permits(context.lock_name(0), ttl, KILLED, LIMIT);
    let holder = (context.start_holder)(hold)?;
    // What the holder sends is not counted.
    context.meter.restart();
    let permits = Permits {
        context,
        in_use: Mutex::new(InUse {
            by_holder: KILLED,
            ..InUse::default()
        }),
        only_killed_left: Latch::new(),
        all_in_use: Latch::new(),
        may_leave: Latch::new(),
    };

    let (outcome, elapsed, after) = thread::scope(|scope| {
        let killer = scope.spawn(|| permits.kill(holder, limit));
        let outcome = barrier_start(threads, |number| {
            let program = all.get((number % PROGRAMS) as usize);
            program.map_or(Ok(false), |program| permits.work(program))
        });
        // In case no thread got in.
        permits.only_killed_left.open();
        permits.all_in_use.open();
        let (outcome, elapsed) = outcome?;
        Ok::<_, Error>((outcome, elapsed, joined(killer)?))
    })?;

    let in_use = permits.in_use.into_inner();
    let admitted = outcome.iter().filter(|&&got_in| got_in).count() as u64;
    let mut run = RunResult {
        admitted,
        turned_away: u64::from(threads) - admitted,
        oversold: u64::from(in_use.most.saturating_sub(LIMIT)),
        elapsed,
        cost: total_cost(&all)?,
        ..RunResult::default()
    };
    if run.oversold > 0 {
        let most = in_use.most;
        run.fault(format!(
            "{most} held one of {LIMIT} permits at the same time"
        ));
    }
    if run.turned_away > 0 {
        run.fault(format!("{} threads never got a permit", run.turned_away));
    }
    match after {
        Reused::After(time) if time > limit => run.fault(format!(
            "all permits were in use only {time:.1?} after their holder was dead, for a ttl of {ttl:?}"
        )),
        Reused::After(_) => {}
        Reused::Never(left) => run.fault(format!(
            "only {left} of {LIMIT} permits were in use {limit:?} after the holder of {KILLED} was dead"
        )),
    }
    Ok(run)
}

/// When the permits of the dead holder were in use again.
enum Reused {
    After(Duration),
    /// They were not in time, and this many were in use then.
    Never(u32),
}

/// How many permits are in use, by the scenario's own count.
#[derive(Default)]
struct InUse {
    by_threads: u32,
    by_holder: u32,
    most: u32,
}

struct Permits<'a> {
    context: &'a Context<'a>,
    in_use: Mutex<InUse>,
    /// The threads have all permits but those of the holder.
    only_killed_left: Latch,
    /// The threads have all permits.
    all_in_use: Latch,
    /// The threads inside need not stay for the holder's death any more.
    may_leave: Latch,
}

impl Permits<'_> {
    /// Acquires a permit, works and releases it. Returns whether the thread got in.
    fn work(&self, program: &Program<'_>) -> Result<bool, Error> {
        let request = LockRequest {
            mode: Mode::Permit { limit: LIMIT },
            ..self.context.long_wait()
        };
        let Some(held) = program.acquire(request)? else {
            return Ok(false);
        };
        self.enter();
        let stayed = self.context.cancel.wait(&self.may_leave, Duration::MAX);
        let worked = self.context.cancel.sleep(self.context.settings.held * WORK);
        self.in_use.lock().by_threads -= 1;
        held.release()?;
        stayed.and(worked).map(|()| true)
    }

    fn enter(&self) {
        let mut in_use = self.in_use.lock();
        in_use.by_threads += 1;
        in_use.most = in_use.most.max(in_use.by_threads + in_use.by_holder);
        if in_use.by_threads >= LIMIT - KILLED {
            self.only_killed_left.open();
        }
        if in_use.by_threads >= LIMIT {
            self.all_in_use.open();
        }
    }

    /// Kills the holder when the threads have all other permits, and waits until they have its permits, too.
    fn kill(&self, holder: Holder, limit: Duration) -> Result<Reused, Error> {
        let cancel = self.context.cancel;
        let reused = cancel
            .wait(&self.only_killed_left, Duration::MAX)
            .and_then(|_| {
                // From here on, its permits may be granted to others.
                self.in_use.lock().by_holder = 0;
                holder.kill()?;
                let killed = Instant::now();
                Ok(match cancel.wait(&self.all_in_use, limit)? {
                    true => Reused::After(killed.elapsed()),
                    false => Reused::Never(self.in_use.lock().by_threads),
                })
            });
        self.may_leave.open();
        reused
    }
}
