//! How long something took, and how much of the processor.

use std::time::{Duration, Instant};

/// Elapsed time: on the wall clock, and on the processor by all threads of this program together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Elapsed {
    pub(crate) wall: Duration,
    /// `None` on systems that do not report it.
    pub(crate) cpu: Option<Duration>,
}

/// Measures the time since it was started.
pub(crate) struct Stopwatch {
    started: Instant,
    cpu: Option<Duration>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            cpu: cpu_time(),
            started: Instant::now(),
        }
    }

    pub(crate) fn elapsed(&self) -> Elapsed {
        let cpu = cpu_time().zip(self.cpu);
        Elapsed {
            wall: self.started.elapsed(),
            cpu: cpu.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// Returns milliseconds with three digits after the point.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3)
}

/// Rounds to three digits after the point.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

fn cpu_time() -> Option<Duration> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.try_into().ok()
}
