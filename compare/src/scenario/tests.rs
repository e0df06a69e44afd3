//! Every scenario catches a broken lock, and tells it from a good one.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{CancelToken, FencingToken, LockKeeper};

use super::context::Sizes;
use super::*;
use crate::holder::InThread;
use crate::meter::Meter;
use crate::store::{Source, Store, Wanted};
use crate::strategy::{Held, Kind, Lock, Locked, Strategy, Terms};

/// A lock that always says yes, though with tokens that grow, as a half-right one would have.
#[derive(Debug)]
struct AlwaysYes(LockKeeper);

struct Yes(FencingToken);

impl Lock for AlwaysYes {
    fn take(&self, _name: &str, _terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let token = self.0.lock("tokens")?.token();
        Ok(Some(Box::new(Yes(token))))
    }
}

impl Held for Yes {
    fn token(&self) -> Option<FencingToken> {
        Some(self.0)
    }

    fn release(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

fn play(
    scenario: Scenario,
    store: &Store,
    sizes: Sizes,
    open: &(dyn Fn() -> Result<Box<dyn Strategy>, Failure> + Sync),
    stop: &CancelToken,
) -> Result<Run, Failure> {
    scenario.play(&Site {
        sizes,
        lock: format!("test/{scenario}"),
        state: store.data().state().as_ref(),
        open,
        meter: &Meter::new(Vec::new())?,
        elsewhere: &InThread { open },
        stop,
    })
}

/// Plays every scenario on every store with what `open` gives.
fn play_all(
    open: impl Fn(&Store) -> Result<Box<dyn Strategy>, Failure> + Sync,
) -> Vec<(String, Run)> {
    let sizes = Sizes {
        threads: 20,
        seats: 5,
        items: 5,
        held: Duration::from_millis(5),
    };
    let folder = tempfile::tempdir().unwrap();
    let stop = CancelToken::new();
    let mut runs = Vec::new();
    let wanted = Wanted::embedded(folder.path()).unwrap();
    for store in &Store::open_all(wanted.into(), folder.path()).unwrap() {
        for scenario in Scenario::ALL {
            let what = format!("{scenario} on {}", store.label());
            let run = play(scenario, store, sizes, &|| open(store), &stop);
            runs.push((what, run.unwrap()));
        }
    }
    runs
}

#[test]
fn a_lock_that_always_says_yes_is_caught_by_every_scenario() {
    let tokens = lockkeeper::open("memory:").unwrap();
    let open = |store: &Store| {
        let lock = AlwaysYes(tokens.clone());
        Ok(Box::new(Locked::new(lock, store.data().state())) as Box<dyn Strategy>)
    };
    for (what, run) in play_all(open) {
        assert!(
            !run.faults.is_empty() && run.oversold > 0,
            "{what}: {run:?}"
        );
    }
}

#[test]
fn no_lock_at_all_is_caught_by_every_scenario() {
    let stop = CancelToken::new();
    for (what, run) in play_all(|store| Kind::None.open(store, 20, &stop)) {
        assert!(
            !run.faults.is_empty() && run.oversold > 0,
            "{what}: {run:?}"
        );
    }
}

#[test]
fn a_good_lock_is_right_in_every_scenario() {
    let stop = CancelToken::new();
    for (what, run) in play_all(|store| Kind::Lockkeeper.open(store, 20, &stop)) {
        assert_eq!(run.faults, Vec::<String>::new(), "{what}");
        assert_eq!(run.oversold, 0, "{what}");
        assert!(!run.account.waits.is_empty(), "{what}");
    }
}

#[test]
fn an_interrupted_scenario_ends_soon() {
    let folder = tempfile::tempdir().unwrap();
    let stop = CancelToken::new();
    let wanted = Wanted {
        from: String::new(),
        source: Source::url("memory:"),
        redlock: Vec::new(),
    };
    let stores = Store::open_all(vec![wanted], folder.path()).unwrap();
    let store = stores.first().unwrap();
    let sizes = Sizes {
        threads: 20,
        seats: 5,
        items: 5,
        held: Duration::from_secs(10),
    };
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            stop.cancel();
        });
        let open = || Kind::Lockkeeper.open(store, 20, &stop);
        let failure = play(Scenario::Gather, store, sizes, &open, &stop).unwrap_err();
        assert!(matches!(failure, Failure::Interrupted), "{failure}");
    });
    assert!(begun.elapsed() < Duration::from_secs(5));
}
