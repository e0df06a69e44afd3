//! The parts of a store, each with requests and outages of its own: a part that hangs delays no other.

use std::iter;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, GRACE};
use crate::mode::Mode;
use crate::name::LockName;

use super::Engine;
use super::health::Health;
use super::travel::sender::{Requests, WaitsFor};

/// What the engine has for one part of the store.
pub(super) struct Part {
    /// What travels together.
    pub(super) requests: Requests,
    /// What waited at the last poll of the keeper's timer.
    pub(super) waits_for: Mutex<WaitsFor>,
    pub(super) health: Health,
    releases: PendingReleases,
}

/// The releases of a part that no caller waits for.
#[derive(Default)]
struct PendingReleases {
    count: AtomicUsize,
    /// Since when none of them was answered, in nanoseconds.
    since: AtomicU64,
}

impl Part {
    fn new() -> Self {
        Self {
            requests: Requests::new(),
            waits_for: Mutex::default(),
            health: Health::new(),
            releases: PendingReleases::default(),
        }
    }

    /// Returns whether the store is likely not to answer soon: it has not answered since a request failed, or releases
    /// have waited for it for longer than a call may take beyond its deadline.
    #[inline(always)] // As what it is called by: see `release.rs`.
    pub(super) fn is_silent(&self, now: HostInstant) -> bool {
        self.health.is_in_doubt()
            || (self.releases.count.load(Ordering::Relaxed) > 0 && self.is_slow(now))
    }

    #[cold]
    fn is_slow(&self, now: HostInstant) -> bool {
        let since = HostInstant::from_nanos(self.releases.since.load(Ordering::Relaxed));
        now >= since + GRACE
    }
}

/// All parts of the store; most stores have one.
pub(super) struct Parts {
    first: Part,
    others: Vec<Part>,
}

impl Parts {
    pub(super) fn new(count: usize) -> Self {
        Self {
            first: Part::new(),
            others: iter::repeat_with(Part::new).take(count - 1).collect(),
        }
    }

    /// Returns the part with this number, as [`Engine::part_of`] returns it.
    #[inline(always)] // As what it is called by: see `release.rs`.
    pub(super) fn get(&self, number: usize) -> &Part {
        let other = number.checked_sub(1).and_then(|at| self.others.get(at));
        other.unwrap_or(&self.first)
    }

    /// Returns the number of releases that no caller waits for: they are queued, under way, repeated, or wait for a
    /// renewal to return.
    pub(super) fn releases(&self) -> usize {
        let count = |part: &Part| part.releases.count.load(Ordering::SeqCst);
        self.iter().map(count).sum()
    }

    /// Returns all parts, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        iter::once(&self.first).chain(&self.others)
    }
}

impl Engine {
    /// Counts a release that no caller waits for.
    pub(super) fn count_release(&self, part: usize) {
        let (releases, now) = (&self.parts.get(part).releases, self.clock.now());
        if releases.count.fetch_add(1, Ordering::SeqCst) == 0 {
            releases.since.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Takes a release off the count: the store has answered.
    pub(super) fn uncount_release(&self, part: usize) {
        let (releases, now) = (&self.parts.get(part).releases, self.clock.now());
        releases.count.fetch_sub(1, Ordering::SeqCst);
        releases.since.store(now.as_nanos(), Ordering::Relaxed);
        self.closing.notify();
    }

    /// Returns the number of the part that keeps a name.
    #[inline(always)]
    pub(super) fn part_of(&self, name: &LockName, mode: Mode) -> usize {
        match self.capabilities.parts() {
            1 => 0,
            parts => {
                let request = AcquireRequest::attempt(name, Duration::ZERO, &*self.clock);
                self.provider.part(&request.with_mode(mode)) % parts
            }
        }
    }
}
