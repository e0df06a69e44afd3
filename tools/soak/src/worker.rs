//! A worker process: its threads lock names, and record what the guards say.

use std::error::Error;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{
    AcquireOptions, Capability, ErrorKind, LeasePolicy, LockKeeper, Mode, Outage, Released,
};

use crate::guards::Guards;
use crate::log::{Ending, Event, Kind, LogWriter, Refusal, nanos, now};
use crate::plan::{LONGEST_WAIT, Plan};
use crate::threads::join_all;

/// The first argument of a worker process.
pub(crate) const ROLE: &str = "--worker";

/// The pause after an error, so that an outage does not fill the log.
const PAUSE_MS: std::ops::Range<u64> = 5..50;

/// Runs this process as a worker, until its standard input ends.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    // Also a stopped worker ends with the campaign; elsewhere only one that reads its input.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let plan = Plan::read(io::stdin().lock())?;
    let worker = Worker {
        log: LogWriter::create(&plan.log)?,
        is_over: AtomicBool::new(false),
        plan,
    };
    worker.run()?;
    Ok(())
}

struct Worker {
    plan: Plan,
    log: LogWriter,
    is_over: AtomicBool,
}

impl Worker {
    fn run(&self) -> io::Result<()> {
        let mut rng = Rng::with_seed(self.plan.seed);
        let urls = self.plan.urls.len();
        thread::scope(|scope| {
            scope.spawn(|| {
                // The end of the input counts, whatever comes before.
                let _ = io::stdin().lock().read_to_end(&mut Vec::new());
                self.is_over.store(true, Ordering::Relaxed);
            });
            let mut started = Vec::new();
            for (first, url) in self.plan.urls.iter().enumerate() {
                let threads = (0..self.plan.threads).skip(first).step_by(urls);
                let seeds: Vec<_> = threads.map(|thread| (thread, rng.fork())).collect();
                started.push(scope.spawn(move || self.work_on(url, seeds)));
            }
            join_all(started)
        })
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Opens a keeper, and runs these threads on it.
    fn work_on(&self, url: &str, threads: Vec<(u32, Rng)>) -> io::Result<()> {
        let first = threads.first().map_or(0, |(thread, _)| *thread);
        let Some(keeper) = self.open(url, first)? else {
            return Ok(());
        };
        thread::scope(|scope| {
            let work = |(thread, rng)| Thread {
                worker: self,
                keeper: &keeper,
                thread,
                rng,
            };
            let threads: Vec<_> = threads
                .into_iter()
                .map(|thread| scope.spawn(move || work(thread).run()))
                .collect();
            if self.plan.closes {
                while !self.is_over() {
                    thread::sleep(Duration::from_millis(10));
                }
                keeper.close();
            }
            join_all(threads)
        })?;
        if self.plan.is_alone {
            self.record_left(&keeper, first)?;
        }
        Ok(())
    }

    /// Opens the store, and repeats that during an outage. `None` if the work is over before it opens.
    fn open(&self, url: &str, thread: u32) -> io::Result<Option<LockKeeper>> {
        while !self.is_over() {
            match lockkeeper::open(url) {
                Ok(keeper) => return Ok(Some(keeper)),
                Err(error) if error.is_retryable() => thread::sleep(Duration::from_millis(20)),
                Err(error) => {
                    let error = Kind::from(&error);
                    self.log.write(thread, now(), Event::NotOpened { error })?;
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Records the names that a store inside of this process lists as held. The other keeper's threads may
    /// hold names until they end, so a listed name counts only after the longest hold.
    fn record_left(&self, keeper: &LockKeeper, thread: u32) -> io::Result<()> {
        let Some(admin) = keeper.admin() else {
            return Ok(());
        };
        let limit = Instant::now() + LONGEST_WAIT + 3 * self.plan.ttl;
        loop {
            let deadline = SystemClock.now() + Duration::from_secs(1);
            let held = admin.held(None, deadline).map_err(io::Error::other)?;
            if held.is_empty() {
                return Ok(());
            }
            if Instant::now() > limit {
                for held in held {
                    let name = held.name;
                    self.log.write(thread, now(), Event::Left { name })?;
                }
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// One thread of a worker.
struct Thread<'a> {
    worker: &'a Worker,
    keeper: &'a LockKeeper,
    thread: u32,
    rng: Rng,
}

impl Thread<'_> {
    fn run(mut self) -> io::Result<()> {
        while !self.worker.is_over() {
            let names = self.names();
            let wait = self.wait();
            let is_shared = self.is_shared(&names);
            let mode = if is_shared {
                Mode::Shared
            } else {
                Mode::Exclusive
            };
            let options = self.options(wait).mode(mode);
            let wait = nanos(wait);
            let asked = |name| Event::Asked {
                name,
                wait,
                is_shared,
            };
            self.record(&names, now(), asked)?;
            let answer = Guards::acquire(self.keeper, &names, &options);
            let at = now();
            let why = match answer {
                Ok(Some(guards)) => {
                    self.record(&names, at, |name| {
                        let (token, slot) = guards.grant(name);
                        Event::Granted { token, slot }
                    })?;
                    self.hold(guards, &names)?;
                    continue;
                }
                Ok(None) => Refusal::Busy,
                Err(error) if error.kind() == ErrorKind::Cancelled => {
                    let why = Refusal::Error(Kind::from(&error));
                    return self.record(&names, at, |_| Event::NotGranted { why: why.clone() });
                }
                Err(error) => {
                    thread::sleep(Duration::from_millis(self.rng.u64(PAUSE_MS)));
                    Refusal::Error(Kind::from(&error))
                }
            };
            self.record(&names, at, |_| Event::NotGranted { why: why.clone() })?;
        }
        Ok(())
    }

    /// Records an event of each name, as that of a thread of its own on the same keeper.
    fn record(&self, names: &[u32], at: u64, event: impl Fn(u32) -> Event) -> io::Result<()> {
        let plan = &self.worker.plan;
        let threads = (self.thread..).step_by(plan.threads as usize * plan.urls.len());
        for (name, thread) in names.iter().zip(threads) {
            self.worker.log.write(thread, at, event(*name))?;
        }
        Ok(())
    }

    /// Returns the names of a call: mostly one lock or semaphore, and else up to three locks.
    fn names(&mut self) -> Vec<u32> {
        let first = self.name();
        if Plan::permits(first).is_some() || self.rng.u8(..10) > 0 {
            return vec![first];
        }
        let mut names = vec![first, self.name(), self.name()];
        names.retain(|name| Plan::permits(*name).is_none());
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns a name. Small numbers come more often: some names are contended, and others are free for a while.
    fn name(&mut self) -> u32 {
        let names = self.worker.plan.names;
        let name = self.rng.u32(..names).min(self.rng.u32(..names));
        match Plan::is_on(name, self.keeper) {
            true => name,
            // The one before a semaphore is a lock.
            false => name - 1,
        }
    }

    /// Returns whether to share the locks: half of the calls for one with an odd number do, where the store can.
    fn is_shared(&mut self, names: &[u32]) -> bool {
        let may_share = names.iter().all(|name| name % 2 == 1);
        may_share && self.keeper.capabilities().has(Capability::Shared) && self.rng.bool()
    }

    /// Returns a wait: none, a short one or a long one.
    fn wait(&mut self) -> Duration {
        let longest = LONGEST_WAIT.as_millis() as u64;
        let millis = match self.rng.u8(..10) {
            0..2 => 0,
            2..5 => self.rng.u64(1..50),
            5..9 => self.rng.u64(50..500),
            _ => self.rng.u64(500..=longest),
        };
        Duration::from_millis(millis)
    }

    fn options(&mut self, wait: Duration) -> AcquireOptions {
        let options = AcquireOptions::new().wait(wait);
        let options = match self.rng.u8(..10) {
            0 => options.outage(Outage::Fail),
            _ => options,
        };
        let ttl = self.worker.plan.ttl;
        match self.rng.u8(..20) {
            0 => options.lease(LeasePolicy::Fixed { ttl }),
            _ => options,
        }
    }

    /// Holds guards for a random time or until their loss, records what they say, and ends them.
    fn hold(&mut self, guards: Guards, names: &[u32]) -> io::Result<()> {
        let plan = &self.worker.plan;
        let (longest, pause) = match names.iter().any(|name| plan.is_held_long(*name)) {
            true => (2 * plan.ttl, Duration::from_millis(20)),
            false => (plan.hold, plan.hold / 4),
        };
        let until = Instant::now() + longest.mul_f64(self.rng.f64());
        loop {
            let at = now();
            if !guards.is_held() {
                self.record(names, now(), |_| Event::Lost)?;
                break;
            }
            self.record(names, at, |_| Event::Held)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.rng.u8(..50) == 0 {
                let error = guards.renew().err().as_ref().map(Kind::from);
                self.record(names, now(), |_| Event::Renewed {
                    error: error.clone(),
                })?;
            }
            thread::sleep(left.min(pause));
        }
        // A guard that was lost must stay lost.
        let at = now();
        if guards.is_held() {
            self.record(names, at, |_| Event::Held)?;
        }
        let began = now();
        let how = if self.rng.bool() {
            drop(guards);
            Ending::Dropped
        } else {
            match guards.release() {
                Ok(Released::Done) => Ending::Released,
                Ok(Released::AlreadyLost) => Ending::AlreadyLost,
                Err(_) => Ending::Unknown,
            }
        };
        self.record(names, now(), |_| Event::Ended { began, how })
    }
}
