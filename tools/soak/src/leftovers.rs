//! What is left in a store when all workers have ended.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{AcquireOptions, Error, LockKeeper};

use crate::guards::Guards;
use crate::history::ProcessLog;
use crate::log::{Event, Kind, Record, Refusal, now};
use crate::plan::Plan;
use crate::store::Store;

/// How far a replica may be behind its primary on a busy machine.
const BEHIND: Duration = Duration::from_secs(1);

/// What was found.
pub(crate) struct Leftovers {
    /// What is left.
    pub(crate) left: Vec<String>,
    /// The attempts of this process to lock each name, for the checker.
    pub(crate) attempts: ProcessLog,
}

/// Waits until the leases of killed workers are over, looks for what is left, and locks each name once, or takes all of
/// its permits.
pub(crate) fn find(store: &Store, key: &str, names: u32, ttl: Duration) -> io::Result<Leftovers> {
    let mut found = Leftovers {
        left: Vec::new(),
        attempts: ProcessLog {
            process: "that checks".to_owned(),
            ..ProcessLog::default()
        },
    };
    let url = match store.urls.first() {
        Some(url) if !store.is_in_process() => format!("{url}{key}"),
        _ => return Ok(found),
    };
    thread::sleep(ttl + store.grace);
    let connections = store.connections()?;
    found.add("connection", connections);
    let keeper = retry(|| lockkeeper::open(&url)).map_err(io::Error::other)?;
    if let Some(admin) = keeper.admin() {
        let held = retry(|| admin.held(None, SystemClock.now() + Duration::from_secs(5)));
        let held = held.map_err(io::Error::other)?;
        found.add(
            "held name",
            held.iter().map(|it| format!("{it:?}")).collect(),
        );
    }
    for name in (0..names).filter(|name| Plan::is_on(*name, &keeper)) {
        found.acquire(&keeper, name);
    }
    drop(keeper);
    found.attempts.ended = now();
    let mut entries = store.entries()?;
    // What a request was granted that came late ends by then.
    let limit = Instant::now() + ttl + BEHIND;
    while !entries.is_empty() && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
        entries = store.entries()?;
    }
    found.add("entry", entries);
    Ok(found)
}

/// Repeats what a store does not answer, since a busy machine may be late.
fn retry<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match ask() {
            Err(error) if error.is_retryable() && Instant::now() < limit => {}
            answer => return answer,
        }
    }
}

impl Leftovers {
    fn add(&mut self, what: &str, all: Vec<String>) {
        let all = all.into_iter().map(|one| format!("{what}: {one}"));
        self.left.extend(all);
    }

    /// Locks a name, or takes all permits of it.
    fn acquire(&mut self, keeper: &LockKeeper, name: u32) {
        let mut held = Vec::new();
        for thread in 0..Plan::permits(name).unwrap_or(1) {
            self.record(
                thread,
                Event::Asked {
                    name,
                    wait: 0,
                    is_shared: false,
                },
            );
            let options = AcquireOptions::new().wait(Duration::ZERO);
            match Guards::acquire(keeper, &[name], &options) {
                Ok(Some(guards)) => {
                    let (token, slot) = guards.grant(name);
                    self.record(thread, Event::Granted { token, slot });
                    held.push(guards);
                }
                answer => {
                    let (why, text) = match answer {
                        Err(error) => (Refusal::Error(Kind::from(&error)), error.to_string()),
                        Ok(_) => (Refusal::Busy, "it is busy".to_owned()),
                    };
                    self.record(thread, Event::NotGranted { why });
                    let name = Plan::name(name);
                    self.left.push(format!("{name} cannot be locked: {text}"));
                }
            }
        }
    }

    fn record(&mut self, thread: u32, event: Event) {
        let at = now();
        self.attempts.records.push(Record { at, thread, event });
    }
}
