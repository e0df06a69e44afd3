//! Rule 14: a wait rides an outage out, and a single attempt, or one with `Outage::Fail`, does not.

use std::error::Error as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, Error, ErrorKind, LockGuard, LockKeeper, Outage};

use crate::recorder::{Event, EventRecorder};
use crate::rig::{Outcome, Rig, build, take};

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

    /// Returns a wait that ends during the outage.
    fn short_wait(self) -> Duration {
        match self {
            // It has to see the holder before the outage begins.
            Self::Waiting => Duration::from_secs(8),
            _ => Duration::from_millis(300),
        }
    }
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
            drop(take(&keeper, "warm"));
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
    let waits = |moment: Moment| [moment.short_wait(), rig.timeout()];
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
        let mut acquiring: Vec<_> = waiting.iter().copied().map(start).collect();
        for row in waiting {
            row.recorder.wait_for(Event::Contended, 1);
        }
        let fault = rig.cut_off()?;
        acquiring.extend(asking.into_iter().map(start));
        let (outlasting, ending): (Vec<_>, Vec<_>) = acquiring
            .into_iter()
            .partition(|(row, _)| row.wait == rig.timeout());
        for (row, ending) in ending {
            let answer = ending.join().expect("it does not panic");
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
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn one_attempt_in_an_outage_fails(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    // Some stores connect with the first lock.
    drop(take(&keeper, "warm"));
    let fault = rig.cut_off()?;
    let before = tap.owners().len();
    let error = assert_unreachable(keeper.try_lock("a"));
    // A lost reply has to be asked for again.
    if error.kind() == ErrorKind::Unavailable {
        assert_eq!(tap.owners().len(), before + 1, "it was asked again");
    }
    drop(fault);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn outage_fail_returns_at_the_first_failure(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    drop(take(&keeper, "warm"));
    let fault = rig.cut_off()?;
    let before = tap.owners().len();
    let options = AcquireOptions::new().wait(Duration::from_millis(300));
    let error = assert_unreachable(keeper.acquire("a", &options.outage(Outage::Fail)));
    // A lost reply has to be asked for again.
    if error.kind() == ErrorKind::Unavailable {
        assert_eq!(tap.owners().len(), before + 1, "it was asked again");
    }
    drop(fault);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}
