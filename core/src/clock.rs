//! The clock by which leases are counted.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::lock;

/// A time of a [`Clock`], in nanoseconds since the host started.
///
/// Unlike [`std::time::Instant`], it can be stored in an atomic. The times of [`SystemClock`] also
/// advance while the host is suspended. Sums saturate at [`HostInstant::NEVER`], which is later
/// than all other times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostInstant(u64);

impl HostInstant {
    /// The deadline that is never reached.
    pub const NEVER: HostInstant = HostInstant(u64::MAX);

    /// Makes the time `nanos` nanoseconds after the host started.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the host started.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this; zero if `earlier` is later.
    pub fn saturating_since(self, earlier: HostInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for HostInstant {
    type Output = HostInstant;
    fn add(self, span: Duration) -> HostInstant {
        HostInstant(self.0.saturating_add(saturating_nanos(span)))
    }
}

impl Sub<Duration> for HostInstant {
    type Output = HostInstant;
    fn sub(self, span: Duration) -> HostInstant {
        HostInstant(self.0.saturating_sub(saturating_nanos(span)))
    }
}

impl fmt::Debug for HostInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HostInstant::NEVER => f.write_str("never"),
            HostInstant(nanos) => write!(f, "boot+{:?}", Duration::from_nanos(nanos)),
        }
    }
}

/// The source of time. Programs use [`SystemClock`]; tests can use [`ManualClock`].
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time, which never decreases.
    fn now(&self) -> HostInstant;

    /// Calls `wake` whenever the time jumps. Only clocks that a test moves need it.
    fn on_jump(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        drop(wake);
    }
}

/// The host's clock that never steps and keeps running during suspend. It is `CLOCK_BOOTTIME` on
/// Linux and Android. Elsewhere it is `CLOCK_MONOTONIC`, which does the same on Apple systems.
///
/// All processes of a host have the same time, so backends for one host may store it. Only a time
/// namespace can have an offset: see clock_gettime(2) and time_namespaces(7).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const HOST_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const HOST_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Clock for SystemClock {
    fn now(&self) -> HostInstant {
        let time = rustix::time::clock_gettime(HOST_CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        HostInstant(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}

type Wake = Arc<dyn Fn() + Send + Sync>;

/// A clock that stands still until a test moves it.
///
/// Deadlines, losses, renewals and waits in the process follow it. A thread that sleeps in a store
/// follows the operating system's time.
#[derive(Clone)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
    wakers: Arc<Mutex<Vec<Wake>>>,
}

impl ManualClock {
    /// Makes a clock whose time is one hour after the host's start.
    pub fn new() -> Self {
        Self {
            nanos: Arc::new(AtomicU64::new(3_600_000_000_000)),
            wakers: Arc::default(),
        }
    }

    /// Moves the time forward and wakes the threads that wait for it.
    pub fn advance(&self, span: Duration) {
        let nanos = saturating_nanos(span);
        self.nanos.fetch_add(nanos, Ordering::SeqCst);
        for wake in lock(&self.wakers).iter() {
            wake();
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> HostInstant {
        HostInstant(self.nanos.load(Ordering::SeqCst))
    }

    fn on_jump(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        lock(&self.wakers).push(wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_and_the_system_clock_runs() {
        let never = HostInstant::NEVER;
        assert_eq!(never + Duration::MAX, never);
        assert_eq!(HostInstant(5) - Duration::from_secs(1), HostInstant(0));
        assert_eq!(HostInstant(5).saturating_since(never), Duration::ZERO);
        let first = SystemClock.now();
        while SystemClock.now() == first {}
        assert!(SystemClock.now() > first);
    }
}
