//! A claim on a lock's name: while a watchdog has it, no other command of this host starts under that
//! name.
//!
//! Some stores grant a dead holder's lock to the next one at once, which may be quicker than killing
//! its command. So the watchdog takes the claim before the command starts, and keeps it until the
//! command's group is gone, or its lock is over.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use lockkeeper::{LeasePolicy, LockGuard, LockKeeper, LockName};
use rustix::process::Signal;

use super::plan::Plan;
use super::signals::{Event, stop_signal};
use super::voice::Voice;
use super::watch::LOOK;
use super::watchdog::Watchdog;

/// How long another one's claim is respected at least, and when it is spoken of.
const SOON: Duration = Duration::from_secs(2);

/// A name that one process of the host can have, and that is free when that one has ended.
#[cfg(target_os = "linux")]
pub(super) struct Claim {
    _socket: Option<std::os::unix::net::UnixListener>,
}

#[cfg(target_os = "linux")]
impl Claim {
    /// `None`: somebody has it.
    pub(super) fn try_new(name: &str) -> Option<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let bound = SocketAddr::from_abstract_name(name);
        match bound.and_then(|address| UnixListener::bind_addr(&address)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            // Where there can be no such socket, nobody has one.
            bound => Some(Self {
                _socket: bound.ok(),
            }),
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) struct Claim;

#[cfg(not(target_os = "linux"))]
impl Claim {
    pub(super) fn try_new(_name: &str) -> Option<Self> {
        Some(Self)
    }
}

/// What the claim on a lock is called.
pub(super) fn name(keeper: &LockKeeper, lock: &LockName) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (keeper.place(), lock.as_str()).hash(&mut hasher);
    format!("lockkeeper-run-{:016x}", hasher.finish())
}

/// How the wait for a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// The watchdog has it, or the one who has it could not have held the lock so long.
    Over,
    /// Asked to end.
    Signal(Signal),
    /// The lock is lost, or there is no time left for a command.
    Lost,
}

/// Waits until the watchdog has its claim.
pub(super) fn wait(
    watchdog: &mut Watchdog,
    plan: Plan,
    guard: &LockGuard,
    events: &Receiver<Event>,
    voice: Voice,
) -> io::Result<Waited> {
    let bound = match plan.policy {
        LeasePolicy::Renewed { ttl } => ttl,
        // Half of it is left for the command.
        LeasePolicy::Fixed { ttl } => ttl / 2,
    };
    // By looks: a host that stands still takes the time from the other one, too.
    let mut waited = Duration::ZERO;
    let mut told = None;
    loop {
        let Some(deadline) = plan.deadline_of(guard) else {
            return Ok(Waited::Lost);
        };
        // One that is stopped would not read, and the pipe fill.
        if told.is_none_or(|told| deadline.claim.saturating_since(told) > LOOK) {
            told = Some(deadline.claim);
            watchdog.tell(deadline)?;
        }
        let is_ready = watchdog.is_ready(LOOK)?;
        if let Some(signal) = stop_signal(events) {
            return Ok(Waited::Signal(signal));
        }
        if is_ready || waited >= bound.max(SOON) {
            return Ok(Waited::Over);
        }
        waited += LOOK;
        if waited == SOON {
            let name = guard.name();
            voice.tell(&format!(
                "an earlier command under {name:?} has not ended yet: waiting for it"
            ));
        }
    }
}
