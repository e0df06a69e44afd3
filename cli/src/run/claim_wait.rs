//! The wait for the watchdog to take the claim on the lock's name, before the command starts.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use lockkeeper::{LeasePolicy, LockGuard};
use rustix::process::Signal;

use super::plan::Plan;
use super::poll::POLL_INTERVAL;
use super::signals::{Event, end_signal};
use super::stderr::StderrWriter;
use super::watchdog::Watchdog;

/// The shortest time for which a claim of another process is respected. Then the wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// How the wait for a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimWait {
    /// The watchdog holds the claim, or the other process has held it for longer than it could have
    /// held the lock.
    Over,
    /// A signal asked this process to end.
    Signal(Signal),
    /// The lock is lost, or no time is left for a command.
    Lost,
}

/// Waits until the watchdog holds its claim.
pub(super) fn wait(
    watchdog: &mut Watchdog,
    plan: Plan,
    guard: &LockGuard,
    events: &Receiver<Event>,
    stderr: StderrWriter,
) -> io::Result<ClaimWait> {
    let bound = match plan.policy {
        LeasePolicy::Renewed { ttl } => ttl,
        // The other half is left for the command.
        LeasePolicy::Fixed { ttl } => ttl / 2,
    };
    // Polls are counted, not time, which would run on while the host is suspended.
    let mut waited = Duration::ZERO;
    let mut sent = None;
    loop {
        let Some(deadlines) = plan.deadlines_of(guard) else {
            return Ok(ClaimWait::Lost);
        };
        // Not at every poll: a stopped watchdog does not read, and would let the pipe fill.
        if sent.is_none_or(|sent| deadlines.claim.saturating_since(sent) > POLL_INTERVAL) {
            sent = Some(deadlines.claim);
            watchdog.send_deadlines(deadlines)?;
        }
        let is_ready = watchdog.wait_for_claim(POLL_INTERVAL)?;
        if let Some(signal) = end_signal(events) {
            return Ok(ClaimWait::Signal(signal));
        }
        if is_ready || waited >= bound.max(REPORT_AFTER) {
            return Ok(ClaimWait::Over);
        }
        waited += POLL_INTERVAL;
        if waited == REPORT_AFTER {
            let name = guard.name();
            stderr.info(&format!(
                "an earlier command under {name:?} has not ended yet: waiting for its end"
            ));
        }
    }
}
