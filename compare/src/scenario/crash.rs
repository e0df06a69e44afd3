//! The holder dies without releasing. It is a real process that is killed; on a store that only one
//! process can see, it is a thread that panics.
//!
//! Right: no other program gets in while the holder lives. The next one gets the lock within ttl +
//! 1 s after the holder's death (in ZooKeeper a tickTime later), or at once if the store notices the
//! death. A lock without a time to live stays forever.

use std::time::{Duration, Instant};

use lockkeeper::LeasePolicy;

use super::context::{Context, RunResult, total_cost};
use crate::error::Error;
use crate::holder::Hold;
use crate::stopwatch::Stopwatch;
use crate::strategy::lock::LockRequest;

/// The ttl of the holder's lease, if the store can have it so short.
pub(super) const TTL: Duration = Duration::from_secs(1);

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let next = context.program()?;
    let ttl = TTL.max(next.lock()?.min_ttl());
    let request = LockRequest::new(LeasePolicy::Renewed { ttl }, ttl + context.grace);
    let mut run = RunResult {
        admitted: 1,
        ..RunResult::default()
    };

    let holder = (context.start_holder)(Hold::lock(context.lock_name(0), ttl))?;
    // What the holder sends is not counted.
    context.meter.restart();
    let watch = Stopwatch::start();
    if let Some(beside) = next.acquire(request.without_wait())? {
        run.oversold += 1;
        run.fault("another was let in while the holder lived");
        beside.release()?;
    } else {
        run.turned_away += 1;
    }
    holder.kill()?;
    let killed = Instant::now();
    match next.acquire(request)? {
        Some(held) => {
            let after = killed.elapsed();
            run.admitted += 1;
            if after > request.wait {
                run.fault(format!(
                    "free only {after:.1?} after its holder was dead, for a ttl of {ttl:?}"
                ));
            }
            held.release()?;
        }
        None => {
            run.turned_away += 1;
            let wait = request.wait;
            run.fault(format!("still locked {wait:?} after its holder was dead"));
        }
    }
    run.elapsed = watch.elapsed();
    run.cost = total_cost(&[&next])?;
    Ok(run)
}
