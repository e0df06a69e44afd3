//! Every scenario finds the fault of a broken lock, and none in a good one.

use std::time::Duration;

use lockkeeper::{CancelToken, LockKeeper};

use super::Scenario;
use super::context::{Context, RunResult};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::holder::Holder;
use crate::meter::Meter;
use crate::settings::Settings;
use crate::store::Store;
use crate::store::spec::StoreSpec;
use crate::strategy::Strategy;
use crate::strategy::lock::{Held, Lock, LockRequest};
use crate::strategy::none::NoLock;
use crate::strategy::transaction::{Locked, Transactor};

/// A lock that grants every request, though with tokens that grow, as a half-right one would have.
struct AlwaysGrants(LockKeeper);

impl Lock for AlwaysGrants {
    fn acquire(&self, _name: &str, _request: LockRequest) -> Result<Option<Held>, Error> {
        let mut held = Held::new(|| Ok(()));
        held.token = Some(self.0.lock("tokens")?.token());
        Ok(Some(held))
    }
}

/// No lock, but the comparison is cancelled as soon as a thread has it.
struct CancelsOnGrant(CancelToken);

impl Lock for CancelsOnGrant {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        self.0.cancel();
        NoLock.acquire(name, request)
    }
}

type Opened = Result<Box<dyn Transactor>, Error>;

fn run(
    scenario: Scenario,
    store: &Store,
    held: Duration,
    cancel: &Cancellation,
    open: impl Fn() -> Opened + Sync,
) -> Result<RunResult, Error> {
    scenario.run(&Context {
        settings: &Settings {
            threads: 20,
            items: 5,
            held,
            ..Settings::default()
        },
        lock: format!("test/{scenario}"),
        state: store.data.state().as_ref(),
        open: &|_| open(),
        meter: &Meter::new(Vec::new(), cancel)?,
        start_holder: &|hold| Holder::thread(open()?, hold),
        cancel,
    })
}

/// Runs every scenario on every embedded store with the strategy that `open` returns.
fn run_all(open: impl Fn(&Store, &Cancellation) -> Opened + Sync) -> Vec<(String, RunResult)> {
    let folder = tempfile::tempdir().unwrap();
    let cancel = Cancellation::new(&CancelToken::new());
    let held = Duration::from_millis(5);
    let mut runs = Vec::new();
    let specs = StoreSpec::embedded(folder.path()).unwrap();
    for store in &Store::open_all(specs.into(), folder.path()).unwrap() {
        for scenario in Scenario::ALL {
            let what = format!("{scenario} on {}", store.label);
            let run = run(scenario, store, held, &cancel, || open(store, &cancel));
            runs.push((what, run.unwrap()));
        }
    }
    runs
}

fn assert_all_wrong(runs: Vec<(String, RunResult)>) {
    for (what, run) in runs {
        assert!(!run.faults.is_empty(), "{what}: {run:?}");
        assert!(run.oversold > 0, "{what}: {run:?}");
    }
}

#[test]
fn lock_that_always_grants_fails_every_scenario() {
    let tokens = lockkeeper::open("memory:").unwrap();
    assert_all_wrong(run_all(|store, _| {
        let lock = Box::new(AlwaysGrants(tokens.clone()));
        Ok(Box::new(Locked::new(lock, store.data.state())))
    }));
}

#[test]
fn no_lock_fails_every_scenario() {
    assert_all_wrong(run_all(|store, cancel| {
        Strategy::None.open(store, 20, cancel)
    }));
}

#[test]
fn good_lock_passes_every_scenario() {
    for (what, run) in run_all(|store, cancel| Strategy::Lockkeeper.open(store, 20, cancel)) {
        assert_eq!(run.faults, Vec::<String>::new(), "{what}");
        assert_eq!(run.oversold, 0, "{what}");
        assert!(!run.cost.waits.is_empty(), "{what}");
    }
}

#[test]
fn cancelling_ends_a_scenario_while_its_threads_think() {
    let folder = tempfile::tempdir().unwrap();
    let specs = vec![StoreSpec::url("memory:")];
    let stores = Store::open_all(specs, folder.path()).unwrap();
    let (store, token) = (stores.first().unwrap(), CancelToken::new());
    let cancel = Cancellation::new(&token);
    let forever = Duration::from_secs(3_600);
    let error = run(Scenario::Gather, store, forever, &cancel, || {
        let lock = Box::new(CancelsOnGrant(token.clone()));
        Ok(Box::new(Locked::new(lock, store.data.state())))
    })
    .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
}
