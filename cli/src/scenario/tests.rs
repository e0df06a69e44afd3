//! Every scenario catches a broken lock, and tells it from a good one.

use lockkeeper::{FencingToken, LockKeeper};

use super::*;
use crate::store::Store;
use crate::strategy::Kind;

/// A lock that always says yes, though with tokens that grow, as a half-right one would have.
#[derive(Debug)]
struct AlwaysYes(LockKeeper);

struct Yes(FencingToken);

impl Strategy for AlwaysYes {
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

const SCENARIOS: [Scenario; 3] = [Scenario::Gather, Scenario::Stock, Scenario::Slow];

/// Plays every scenario on every store with what `open` gives.
fn play_all(open: impl Fn(&Store) -> Box<dyn Strategy> + Sync) -> Vec<(String, Run)> {
    let folder = tempfile::tempdir().unwrap();
    let stop = CancelToken::new();
    let mut runs = Vec::new();
    for store in &Store::open_all(&[], folder.path()).unwrap() {
        for scenario in SCENARIOS {
            let site = Site {
                sizes: Sizes {
                    threads: 20,
                    seats: 5,
                    items: 5,
                    held: Duration::from_millis(5),
                },
                lock: format!("test/{scenario}"),
                state: store.state(),
                open: &|| Ok(open(store)),
                stop: &stop,
            };
            let what = format!("{scenario} on {}", store.label());
            runs.push((what, scenario.play(&site).unwrap()));
        }
    }
    runs
}

#[test]
fn a_lock_that_always_says_yes_is_caught_by_every_scenario() {
    let tokens = lockkeeper::open("memory:").unwrap();
    for (what, run) in play_all(|_| Box::new(AlwaysYes(tokens.clone()))) {
        assert!(
            !run.faults.is_empty() && run.oversold > 0,
            "{what}: {run:?}"
        );
    }
}

#[test]
fn no_lock_at_all_is_caught_by_every_scenario() {
    let stop = CancelToken::new();
    for (what, run) in play_all(|store| Kind::None.open(store, &stop).unwrap()) {
        assert!(
            !run.faults.is_empty() && run.oversold > 0,
            "{what}: {run:?}"
        );
    }
}

#[test]
fn a_good_lock_is_right_in_every_scenario() {
    let stop = CancelToken::new();
    for (what, run) in play_all(|store| Kind::Lockkeeper.open(store, &stop).unwrap()) {
        assert_eq!(run.faults, Vec::<String>::new(), "{what}");
        assert_eq!(run.oversold, 0, "{what}");
        assert!(!run.account.waits.is_empty(), "{what}");
    }
}

#[test]
fn an_interrupted_scenario_ends_soon() {
    let folder = tempfile::tempdir().unwrap();
    let stop = CancelToken::new();
    let stores = Store::open_all(&["memory:".to_owned()], folder.path()).unwrap();
    let store = stores.first().unwrap();
    let site = Site {
        sizes: Sizes {
            threads: 20,
            seats: 5,
            items: 5,
            held: Duration::from_secs(10),
        },
        lock: "test".to_owned(),
        state: store.state(),
        open: &|| Kind::Lockkeeper.open(store, &stop),
        stop: &stop,
    };
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            stop.cancel();
        });
        let failure = Scenario::Gather.play(&site).unwrap_err();
        assert!(matches!(failure, Failure::Interrupted), "{failure}");
    });
    assert!(begun.elapsed() < Duration::from_secs(5));
}
