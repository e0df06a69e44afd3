//! The clock that leases are counted on.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A point on a [`Clock`], in nanoseconds since the host started.
///
/// Unlike [`std::time::Instant`] it can be stored in an atomic, and (by [`SystemClock`]) it runs on
/// while the host sleeps. Sums saturate: [`HostInstant::NEVER`] is later than everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostInstant(u64);

impl HostInstant {
    /// The end of time: a deadline that does not come.
    pub const NEVER: HostInstant = HostInstant(u64::MAX);

    /// The point `nanos` nanoseconds after the host started.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the host started.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this, zero where `earlier` is later.
    pub fn saturating_since(self, earlier: HostInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Whole nanoseconds of a duration; what does not fit is the largest there is.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for HostInstant {
    type Output = HostInstant;
    fn add(self, span: Duration) -> HostInstant {
        HostInstant(self.0.saturating_add(nanos(span)))
    }
}

impl Sub<Duration> for HostInstant {
    type Output = HostInstant;
    fn sub(self, span: Duration) -> HostInstant {
        HostInstant(self.0.saturating_sub(nanos(span)))
    }
}

impl fmt::Debug for HostInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == HostInstant::NEVER {
            return f.write_str("never");
        }
        write!(f, "boot+{:?}", Duration::from_nanos(self.0))
    }
}

/// Where the time comes from. Programs use [`SystemClock`]; tests can use [`ManualClock`].
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now. Never less than an earlier answer.
    fn now(&self) -> HostInstant;

    /// Asks to be woken whenever the time jumps. Only clocks that are moved by hand need it.
    fn on_jump(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        drop(wake);
    }
}

/// The host's clock that never steps and runs on in suspend: `CLOCK_BOOTTIME` on Linux and
/// Android, `CLOCK_MONOTONIC` on Apple systems (where it does the same), else
/// [`std::time::Instant`].
///
/// Processes of one host agree on it, so backends for one host may store its moments; but for those
/// of a time namespace with an offset of its own, see clock_gettime(2) and time_namespaces(7).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[cfg(unix)]
const HOST_CLOCK: rustix::time::ClockId = {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        rustix::time::ClockId::Boottime
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        rustix::time::ClockId::Monotonic
    }
};

impl Clock for SystemClock {
    #[cfg(unix)]
    fn now(&self) -> HostInstant {
        let time = rustix::time::clock_gettime(HOST_CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        HostInstant(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    #[cfg(not(unix))]
    fn now(&self) -> HostInstant {
        static START: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        HostInstant(nanos(START.elapsed()))
    }
}

type Wakers = Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>;

/// A clock that stands still until a test moves it.
///
/// Deadlines, lost state, renewal and waits in line follow it. How long a thread sleeps in a store
/// does not: that is the operating system's time.
#[derive(Clone, Default)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
    wakers: Arc<Wakers>,
}

impl ManualClock {
    /// A clock that stands one hour after the host's start.
    pub fn new() -> Self {
        let clock = Self::default();
        clock.nanos.store(3_600_000_000_000, Ordering::SeqCst);
        clock
    }

    /// Moves the time forward and wakes whatever waits for it.
    pub fn advance(&self, span: Duration) {
        self.nanos.fetch_add(nanos(span), Ordering::SeqCst);
        let wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        for wake in wakers.iter() {
            wake();
        }
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
        self.wakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate() {
        assert_eq!(HostInstant::NEVER + Duration::MAX, HostInstant::NEVER);
        assert_eq!(HostInstant(5) - Duration::from_secs(1), HostInstant(0));
        assert_eq!(
            HostInstant(5).saturating_since(HostInstant::NEVER),
            Duration::ZERO
        );
    }

    #[test]
    fn the_system_clock_moves_on() {
        let first = SystemClock.now();
        while SystemClock.now() == first {}
        assert!(SystemClock.now() > first);
    }
}
