//! Faults at random times: what a fault may use, and what is written down about it.

pub(crate) mod losses;
pub(crate) mod network;
pub(crate) mod server;
pub(crate) mod workers;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::forgot::Forgot;
use crate::log::{nanos, now};
use crate::watched::Watched;

/// How often a pause looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(20);

/// A fault that happened. The times are nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: &'static str,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The faults of a round.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    faults: Mutex<Vec<Fault>>,
    forgot: Mutex<Vec<Forgot>>,
    watched: Mutex<Vec<Watched>>,
    told: Mutex<Vec<Watched>>,
}

/// What a round's journal says in the end.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// The faults, in the order of their ends.
    pub(crate) faults: Vec<Fault>,
    pub(crate) forgot: Vec<Forgot>,
    pub(crate) watched: Vec<Watched>,
    /// The time from each loss that the store knew of until its guard was notified.
    pub(crate) told: Vec<Watched>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Notes that the store forgets all leases while `act` runs.
    pub(crate) fn forget(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.forget_of(None, Duration::ZERO, act)
    }

    /// Notes that the store forgets the leases of the keepers on one URL (`None`: all) while `act` runs, and for
    /// `unnoticed` after it.
    pub(crate) fn forget_of(
        &self,
        keeper: Option<u32>,
        unnoticed: Duration,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let from = now();
        act()?;
        let to = now().saturating_add(nanos(unnoticed));
        lock(&self.forgot).push(Forgot { keeper, from, to });
        Ok(())
    }

    /// Records the time from a loss until its guard was notified.
    fn told(&self, until_told: Watched) {
        lock(&self.told).push(until_told);
    }

    /// Returns what was noted.
    pub(crate) fn into_noted(self) -> Noted {
        fn inner<T>(mutex: Mutex<T>) -> T {
            mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
        Noted {
            faults: inner(self.faults),
            forgot: inner(self.forgot),
            watched: inner(self.watched),
            told: inner(self.told),
        }
    }
}

/// When a round is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<'a> {
    at: Instant,
    /// Set by Ctrl-C.
    is_interrupted: &'a AtomicBool,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(at: Instant, is_interrupted: &'a AtomicBool) -> Self {
        Self { at, is_interrupted }
    }

    fn left(self) -> Duration {
        if self.is_interrupted.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        self.at.saturating_duration_since(Instant::now())
    }
}

/// One sequence of faults, with random numbers of its own. Several lanes run at a time.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    rng: Rng,
    deadline: Deadline<'a>,
    ttl: Duration,
    pub(crate) journal: &'a Journal,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(
        seed: u64,
        deadline: Deadline<'a>,
        ttl: Duration,
        journal: &'a Journal,
    ) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            deadline,
            ttl,
            journal,
        }
    }

    /// Pauses for a random time of this many milliseconds, and at most until the round is over. Returns whether
    /// it goes on.
    pub(crate) fn pause(&mut self, millis: std::ops::Range<u64>) -> bool {
        let pause = self.millis(millis);
        self.pause_for(pause)
    }

    /// Pauses as long as a fault lasts: often much shorter than the ttl, and often longer, so that leases end.
    pub(crate) fn spell(&mut self) {
        let longest = match self.rng.bool() {
            true => self.ttl / 4,
            false => 2 * self.ttl,
        };
        let pause = longest.mul_f64(self.rng.f64());
        self.pause_for(pause);
    }

    /// Pauses for this time, and at most until the round is over. Returns whether it goes on.
    pub(crate) fn pause_for(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let left = self.deadline.left();
            let pause = left.min(until.saturating_duration_since(Instant::now()));
            if pause.is_zero() {
                return !left.is_zero();
            }
            thread::sleep(pause.min(TICK));
        }
    }

    /// Pauses for this time, in which names (`None`: all together) must be granted all along.
    pub(crate) fn watch(&self, kind: &'static str, names: Option<Vec<u32>>, pause: Duration) {
        let from = now();
        self.pause_for(pause);
        let to = now();
        lock(&self.journal.watched).push(Watched {
            kind,
            names,
            from,
            to,
        });
    }

    /// Returns a random number of milliseconds.
    pub(crate) fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    /// Returns a random seed.
    pub(crate) fn seed(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// Returns a random item.
    pub(crate) fn pick<'i, T>(&mut self, items: &'i [T]) -> Option<&'i T> {
        items.get(self.rng.usize(..items.len().max(1)))
    }

    /// Returns a random number from 0 to `n` - 1.
    pub(crate) fn choice(&mut self, n: u32) -> u32 {
        self.rng.u32(..n)
    }

    /// Runs a fault, and writes it down.
    pub(crate) fn fault(
        &mut self,
        kind: &'static str,
        act: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let from = now();
        act(self)?;
        let to = now();
        lock(&self.journal.faults).push(Fault { kind, from, to });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_repeats_its_choices_and_writes_faults_down() {
        let journal = Journal::default();
        let is_interrupted = AtomicBool::new(false);
        let far = Instant::now() + Duration::from_secs(3600);
        let deadline = Deadline::new(far, &is_interrupted);
        let ttl = Duration::from_secs(1);
        let [mut one, mut same] = [7, 7].map(|seed| Lane::new(seed, deadline, ttl, &journal));
        let choices = |lane: &mut Lane<'_>| (lane.millis(0..1000), lane.seed(), lane.choice(1000));
        assert_eq!(choices(&mut one), choices(&mut same));
        assert_eq!(one.pick::<u8>(&[]), None);
        let forget = |lane: &mut Lane<'_>| lane.journal.forget(|| Ok(()));
        one.fault("flushed", forget).unwrap();
        one.fault("failed", |_| Err(io::ErrorKind::Other.into()))
            .unwrap_err();
        assert!(one.pause(0..1));
        is_interrupted.store(true, Ordering::Relaxed);
        assert!(!one.pause(3_600_000..3_600_001));
        let Noted { faults, forgot, .. } = journal.into_noted();
        assert_eq!(
            faults.iter().map(|it| it.kind).collect::<Vec<_>>(),
            ["flushed"]
        );
        assert!(faults[0].from <= forgot[0].from && forgot[0].to <= faults[0].to);
    }
}
