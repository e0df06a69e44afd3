//! Losses in a row: an operator takes names from one keeper in quick succession. The checker measures how soon each
//! guard is notified. It subtracts the time for which the machine was too busy to run a thread, as this program's
//! own timers show it. It also subtracts the time in which the store granted nothing: a worker that is stopped
//! while it writes blocks a SQLite file.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{LockGuard, LockKeeper};

use super::{Lane, lock};
use crate::log::{nanos, now};
use crate::watched::Watched;

/// How many names are taken, and how soon one after the other.
pub(crate) const LOSSES: usize = 30;
const APART: Duration = Duration::from_millis(60);

/// Long enough that no renewal notices a loss before the store notifies of it.
const KEYS: &str = "ttl=60s&wait=5s";

/// How long the waits of the names have to begin in the store.
const QUEUED: Duration = Duration::from_millis(300);

/// The number of threads and processes that a loss passes on its way to the guard. They are the session, the thread
/// that sees its end, a worker, the server that it asks, and the worker again. Each may run as late as a timer of
/// this program does.
const HOPS: u64 = 5;

/// How long a call for a name may take.
const CALL: Duration = Duration::from_secs(2);

/// Locks names with a keeper of its own, takes them away as an operator does, and records how soon each guard was
/// notified.
pub(super) fn run(lane: &Lane<'_>, url: &str) -> io::Result<()> {
    let url = format!("{url}{KEYS}");
    let open = || match lockkeeper::open(&url) {
        // A server that was just restarted may not answer yet.
        Err(error) if error.is_retryable() => Ok(None),
        opened => opened.map(Some).map_err(io::Error::other),
    };
    let (Some(holder), Some(operator)) = (open()?, open()?) else {
        return Ok(());
    };
    // A lease that was waited for has a session of its own, where a lease is a session's.
    let first: Vec<_> = (0..LOSSES).map(|it| acquire(&operator, it)).collect();
    let guards: Vec<LockGuard> = thread::scope(|scope| {
        let holder = &holder;
        let threads = (0..LOSSES).map(|number| scope.spawn(move || acquire(holder, number)));
        let threads: Vec<_> = threads.collect();
        lane.pause_for(QUEUED);
        drop(first);
        let guards = threads.into_iter().filter_map(|it| it.join().ok());
        guards.flatten().collect()
    });
    let (is_over, late) = (AtomicBool::new(false), AtomicU64::new(0));
    let told = thread::scope(|scope| {
        scope.spawn(|| measure_lateness(&is_over, &late));
        let told = take_all(lane, &operator, &guards);
        is_over.store(true, Ordering::Relaxed);
        told
    });
    let late = late.into_inner() * HOPS;
    for (from, to) in told {
        lane.journal.told(Watched {
            kind: "losses in a row",
            names: None,
            from,
            to: to.saturating_sub(late).max(from),
        });
    }
    Ok(())
}

/// Takes the names in quick succession. Returns when each was taken, and when its guard was notified.
fn take_all(lane: &Lane<'_>, operator: &LockKeeper, guards: &[LockGuard]) -> Vec<(u64, u64)> {
    let lost: Vec<_> = guards.iter().map(note_loss).collect();
    let mut taken = Vec::new();
    for (guard, lost) in guards.iter().zip(&lost) {
        let next = Instant::now() + APART;
        if guard.is_held() && take(operator, guard) {
            taken.push((now(), lost));
        }
        if !lane.pause_for(next.saturating_duration_since(Instant::now())) {
            break;
        }
    }
    let told = taken.into_iter().map(|(at, lost)| {
        while lock(lost).is_none() && now() < at + nanos(CALL) {
            thread::sleep(Duration::from_millis(1));
        }
        (at, lock(lost).unwrap_or_else(now).max(at))
    });
    told.collect()
}

/// Measures by how many nanoseconds a timer of this program is late at most.
fn measure_lateness(is_over: &AtomicBool, late: &AtomicU64) {
    const NAP: Duration = Duration::from_millis(5);
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        thread::sleep(NAP);
        late.fetch_max(
            nanos(began.elapsed().saturating_sub(NAP)),
            Ordering::Relaxed,
        );
    }
}

fn acquire(keeper: &LockKeeper, number: usize) -> Option<LockGuard> {
    keeper.lock(format!("row:{number}")).ok()
}

/// Returns the time at which a guard is notified of its loss, as soon as there is one.
fn note_loss(guard: &LockGuard) -> Arc<Mutex<Option<u64>>> {
    let lost = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&lost);
    guard
        .lost_signal()
        .on_lost(move || *lock(&noted) = Some(now()));
    lost
}

/// Takes the name from its holder. Returns false if it is not known whether that was done.
fn take(operator: &LockKeeper, guard: &LockGuard) -> bool {
    let deadline = SystemClock.now() + CALL;
    let taken = operator.admin().and_then(|admin| {
        let held = admin.held(Some(guard.name()), deadline).ok()?;
        admin.force_release(held.first()?, deadline).ok()
    });
    taken == Some(true)
}
