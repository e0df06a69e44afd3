//! How late the threads of this program run. On a busy machine, a lease may end before its renewal is sent, which says
//! nothing of its store.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::{Outcome, Rig};

/// The longest ttl that is tried.
const LONGEST: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

/// Measures on a thread of its own until it is dropped.
pub(crate) struct Lateness(Arc<Measured>);

#[derive(Default)]
struct Measured {
    is_over: AtomicBool,
    pauses: AtomicU64,
    all_nanos: AtomicU64,
    longest_nanos: AtomicU64,
}

impl Lateness {
    pub(crate) fn measure() -> Self {
        let measured = Arc::<Measured>::default();
        let lateness = Self(Arc::clone(&measured));
        thread::spawn(move || {
            while !measured.is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(PAUSE);
                let late = began.elapsed().saturating_sub(PAUSE).as_nanos();
                let late = u64::try_from(late).unwrap_or(u64::MAX);
                measured.pauses.fetch_add(1, Ordering::Relaxed);
                measured.all_nanos.fetch_add(late, Ordering::Relaxed);
                measured.longest_nanos.fetch_max(late, Ordering::Relaxed);
            }
        });
        lateness
    }

    /// Returns how late threads are on the average.
    pub(crate) fn mean(&self) -> Duration {
        let pauses = self.0.pauses.load(Ordering::Relaxed).max(1);
        Duration::from_nanos(self.0.all_nanos.load(Ordering::Relaxed) / pauses)
    }

    /// Adds how late something else was, such as a server that starts again.
    pub(crate) fn add(&self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.0.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.0.longest_nanos.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Rig<'_> {
    /// Runs `check` with a ttl of `millis`, in which leases must be renewed. If it fails while threads are late, it runs
    /// again with a longer ttl.
    pub(crate) fn with_renewed_ttl(
        &self,
        millis: u64,
        check: impl Fn(Duration, &Lateness) -> Outcome,
    ) -> Outcome {
        let mut ttl = self.ttl(millis);
        loop {
            let lateness = Lateness::measure();
            match catch_unwind(AssertUnwindSafe(|| check(ttl, &lateness))) {
                Ok(outcome) => return outcome,
                // A renewal goes through several threads.
                Err(_) if lateness.longest() > ttl / 20 && ttl < LONGEST => ttl *= 2,
                Err(panic) => resume_unwind(panic),
            }
        }
    }
}
