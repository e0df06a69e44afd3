//! How long it took, and how much of the processor.

use std::ops::Add;
use std::time::{Duration, Instant};

/// Time on the wall and on the processor, all threads of this program together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// On the wall.
    pub(crate) elapsed: Duration,
    /// On the processor; `None` where the system does not tell.
    pub(crate) cpu: Option<Duration>,
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            elapsed: self.elapsed + other.elapsed,
            cpu: self.cpu.zip(other.cpu).map(|(a, b)| a + b),
        }
    }
}

/// Runs from its making.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
    cpu: Option<Duration>,
}

impl Stopwatch {
    /// Starts.
    pub(crate) fn start() -> Self {
        Self {
            cpu: cpu_time(),
            started: Instant::now(),
        }
    }

    /// What has passed since.
    pub(crate) fn read(&self) -> Span {
        Span {
            elapsed: self.started.elapsed(),
            cpu: cpu_time()
                .zip(self.cpu)
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

#[cfg(unix)]
fn cpu_time() -> Option<Duration> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.try_into().ok()
}

#[cfg(not(unix))]
fn cpu_time() -> Option<Duration> {
    None
}
