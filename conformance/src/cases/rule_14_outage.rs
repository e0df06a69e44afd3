//! Rule 14: an acquisition with a wait waits through an outage. A single attempt, or one with `Outage::Fail`,
//! fails.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireOptions, Error, ErrorKind, LockGuard, LockKeeper, Observer, Outage};

use crate::recorder::{Event, EventRecorder};
use crate::rig::{Outcome, Rig, Skip, build, take};

/// Checks the error of an acquisition in an outage. A store that took the request and did not reply may
/// have granted the lock.
fn assert_unreachable(answer: Result<Option<LockGuard>, Error>) -> Error {
    let error = answer.map(drop).expect_err("the store is unreachable");
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    error
}

/// How far an acquisition is when the store becomes unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The keeper was opened. Some stores connect with the first lock.
    Opened,
    /// The keeper has locked before.
    Connected,
    /// The acquisition waits in the store.
    Waiting,
}

impl Moment {
    const ALL: [Self; 3] = [Self::Opened, Self::Connected, Self::Waiting];
}

/// One acquisition, by a keeper of its own.
struct Row {
    moment: Moment,
    wait: Duration,
    name: String,
    keeper: LockKeeper,
    recorder: Arc<EventRecorder>,
}

impl Row {
    fn new(rig: &Rig<'_>, moment: Moment, wait: Duration) -> Self {
        let recorder = rig.recorder();
        // What a store grants to an acquisition that has ended expires with the ttl.
        let builder = rig.builder().lease(rig.renewed(1_000));
        let keeper = build(builder.observer(Arc::clone(&recorder) as _));
        if moment != Moment::Opened {
            let warm = take(&keeper, "warm");
            warm.release().expect("the store replies");
        }
        Self {
            moment,
            wait,
            name: format!("{moment:?} {wait:?}"),
            keeper,
            recorder,
        }
    }

    fn acquire(&self) -> Result<Option<LockGuard>, Error> {
        self.keeper.try_lock_for(&self.name, self.wait)
    }
}

pub(super) fn wait_ends_in_an_outage_or_outlasts_it(rig: &Rig<'_>) -> Outcome {
    let mut short = Duration::from_secs(8);
    while !wait_in_an_outage(rig, short)? {
        short *= 2;
    }
    rig.nothing_left();
    Ok(())
}

/// How much later than its wait an acquisition ends.
const LATE: Duration = Duration::from_millis(100);

/// Checks acquisitions whose waits end during an outage, after `short` where they wait in the store before, and others
/// that outlast it. Returns false if the outage began too late, on a busy machine.
fn wait_in_an_outage(rig: &Rig<'_>, short: Duration) -> Result<bool, Skip> {
    let waits = |moment| match moment {
        Moment::Waiting => [short, rig.timeout()],
        _ => [Duration::from_millis(300), rig.timeout()],
    };
    let rows = Moment::ALL.map(|moment| waits(moment).map(|wait| Row::new(rig, moment, wait)));
    let holder = rig.keeper();
    thread::scope(|scope| {
        let (waiting, asking): (Vec<_>, Vec<_>) = rows
            .iter()
            .flatten()
            .partition(|row| row.moment == Moment::Waiting);
        let held = waiting.iter().map(|row| take(&holder, &row.name));
        let held: Vec<_> = held.collect();
        let start = |row| (row, scope.spawn(move || Row::acquire(row)));
        let began = Instant::now();
        let mut acquiring: Vec<_> = waiting.iter().copied().map(start).collect();
        for row in waiting {
            row.recorder.wait_for(Event::Contended, 1);
        }
        let fault = rig.cut_off()?;
        // A wait whose last reply is pending may end as busy if its store has shown the holder within this time.
        let lately = holder.capabilities().attempt_limit() + LATE;
        let is_judged = began.elapsed() + lately < short;
        acquiring.extend(asking.into_iter().map(start));
        let (outlasting, ending): (Vec<_>, Vec<_>) = acquiring
            .into_iter()
            .partition(|(row, _)| row.wait == rig.timeout());
        for (row, ending) in ending {
            let answer = ending.join().expect("it does not panic");
            if row.moment == Moment::Waiting && !is_judged {
                continue;
            }
            let error = assert_unreachable(answer);
            // A store that waits without replies need not find the outage before the end.
            if row.moment != Moment::Waiting {
                assert!(error.to_string().contains("for the last"), "{error:?}");
                assert!(error.source().is_some(), "{error:?}");
            }
        }
        drop(fault);
        for held in held {
            // The store may need another connection.
            rig.until("the holder reaches the store", || held.renew().is_ok());
        }
        for (row, outlasting) in outlasting {
            let answer = outlasting.join().expect("it does not panic");
            let granted = answer.unwrap_or_else(|error| panic!("{:?}: {error:?}", row.moment));
            assert!(granted.is_some(), "{:?} was not granted", row.moment);
        }
        Ok(is_judged)
    })
}

/// A single attempt, and a wait that returns at the first failure.
pub(super) fn acquisition_that_rides_no_outage_out_fails(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    // Some stores connect with the first lock.
    let warm = take(&keeper, "warm");
    warm.release().expect("the store replies");
    let fault = rig.cut_off()?;
    let waits = AcquireOptions::new().wait(Duration::from_millis(300));
    let attempt = AcquireOptions::new().wait(Duration::ZERO);
    for options in [attempt, waits.outage(Outage::Fail)] {
        let before = tap.requests();
        let error = assert_unreachable(keeper.acquire("a", &options));
        // A lost reply has to be asked for again.
        if error.kind() == ErrorKind::Unavailable {
            // On a busy machine, the wait may be over before it was asked.
            assert!(tap.requests() <= before + 1, "it was asked again");
        }
    }
    drop(fault);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}

/// The outages that observers were notified of.
#[derive(Default)]
struct Outages(Mutex<Vec<Told>>);

#[derive(Clone, Copy, Debug)]
enum Told {
    Began(Instant),
    Ended(Duration),
}

impl Outages {
    fn all(&self) -> Vec<Told> {
        let told = self.0.lock();
        told.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, told: Told) {
        let all = self.0.lock();
        all.unwrap_or_else(PoisonError::into_inner).push(told);
    }

    /// Returns when the outage began that has not ended.
    fn began(&self) -> Option<Instant> {
        match self.all().last() {
            Some(Told::Began(at)) => Some(*at),
            _ => None,
        }
    }
}

impl Observer for Outages {
    fn outage_began(&self, _: &str, _: &Error) {
        self.push(Told::Began(Instant::now()));
    }

    fn outage_ended(&self, _: &str, lasted: Duration) {
        self.push(Told::Ended(lasted));
    }
}

/// Ends the threads of a case, also if it panics.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Leases are renewed and lost meanwhile, guards are dropped, and threads with a short wait ask.
pub(super) fn outage_is_told_until_the_store_answers_again(rig: &Rig<'_>) -> Outcome {
    const THREADS: usize = 4;
    let outages = Arc::new(Outages::default());
    let builder = rig.builder().lease(rig.renewed(1_000));
    let keeper = build(builder.observer(Arc::clone(&outages) as _));
    let guards: Vec<_> = (0..THREADS)
        .map(|number| take(&keeper, &format!("held {number}")))
        .collect();
    let failures = [const { AtomicUsize::new(0) }; THREADS];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, failures) in failures.iter().enumerate() {
            let (keeper, is_over) = (&keeper, &is_over);
            scope.spawn(move || {
                let name = format!("asked {number}");
                while !is_over.load(Ordering::SeqCst) {
                    let answer = keeper.try_lock_for(&name, Duration::from_millis(300));
                    failures.fetch_add(usize::from(answer.is_err()), Ordering::SeqCst);
                }
            });
        }
        let _end = SetAtEnd(&is_over);
        let fault = rig.cut_off()?;
        let has_failed = |times: usize| {
            let before = failures.each_ref().map(|it| it.load(Ordering::SeqCst));
            rig.until("all threads find the outage", || {
                let now = failures.iter().map(|it| it.load(Ordering::SeqCst));
                now.zip(before).all(|(now, before)| now >= before + times)
            });
        };
        has_failed(1);
        drop(guards);
        rig.until("the outage is told", || outages.began().is_some());
        let (began, told) = (outages.began(), outages.all());
        has_failed(3);
        let now = outages.all();
        assert_eq!(now.len(), told.len(), "{now:?} during one outage");
        let lasted = began.map_or(Duration::ZERO, |began| began.elapsed());
        drop(fault);
        rig.until("the end is told", || outages.began().is_none());
        let now = outages.all();
        let end = now.get(told.len());
        let is_whole = matches!(end, Some(Told::Ended(all)) if *all >= lasted);
        assert!(is_whole, "{end:?} of an outage of {lasted:?}");
        Ok(())
    })
}
