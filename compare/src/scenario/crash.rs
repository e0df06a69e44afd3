//! The holder dies without releasing: a real process, killed; for a store that only one process can
//! see, a thread that panics.
//!
//! Right: while it lives nobody else is let in, and when it is dead the next one gets the lock
//! within ttl + 1 s, or at once where the store can tell. A lock without a time to live stays for
//! ever.

use std::time::{Duration, Instant};

use lockkeeper::LeasePolicy;

use super::context::{Run, Site, settle};
use crate::error::Failure;
use crate::stopwatch::Stopwatch;
use crate::strategy::Terms;

/// The lease of the one who dies, where the store can have it so short.
const TTL: Duration = Duration::from_secs(1);
/// What a store may take beyond the ttl.
const GRACE: Duration = Duration::from_secs(1);

/// Plays it once.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let next = site.program()?;
    let ttl = TTL.max(next.lock()?.least_ttl());
    let terms = Terms {
        lease: LeasePolicy::Renewed { ttl },
        wait: ttl + GRACE,
        again: false,
    };
    let mut run = Run {
        admitted: 1,
        ..Run::default()
    };

    let holder = site.elsewhere.hold(&site.name(0), ttl, site.stop)?;
    // What it cost to hold it there is not counted.
    site.meter.restart()?;
    let watch = Stopwatch::start();
    if let Some(beside) = next.take(terms.at_once())? {
        run.oversold += 1;
        let fault = "another was let in while the holder lived";
        run.faults.push(fault.to_owned());
        beside.release()?;
    } else {
        run.turned_away += 1;
    }
    holder.die()?;
    let dead = Instant::now();
    match next.take(terms)? {
        Some(held) => {
            let after = dead.elapsed();
            run.admitted += 1;
            run.fault_if(after > terms.wait, || {
                format!(
                    "it was free only {after:.1?} after its holder was dead, for a ttl of {ttl:?}"
                )
            });
            held.release()?;
        }
        None => {
            run.turned_away += 1;
            let fault = format!("still locked {:?} after its holder was dead", terms.wait);
            run.faults.push(fault);
        }
    }
    run.span = watch.read();
    run.account = settle([next])?;
    Ok(run)
}
