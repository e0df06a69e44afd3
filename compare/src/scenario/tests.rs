//! What no row of the command can show. Its rows show that every scenario is wrong without a lock, and right with a good
//! one (`cli/tests/compare.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, LockKeeper};

use super::Scenario;
use super::context::{Context, RunResult};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::holder::Holder;
use crate::meter::Meter;
use crate::settings::Settings;
use crate::store::Store;
use crate::store::spec::StoreSpec;
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

/// A lock whose first release is carried out, but fails as if the store had not answered.
struct LosesOneReply(LockKeeper, Arc<AtomicBool>);

impl Lock for LosesOneReply {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let options = AcquireOptions::new()
            .wait(request.wait)
            .lease(request.lease);
        let guard = self.0.acquire(name, &options)?;
        let answers = Arc::clone(&self.1);
        Ok(guard.map(|guard| {
            Held::new(move || {
                // Before the release, since the next holder may release at once.
                let answers = answers.swap(true, Ordering::SeqCst);
                guard.release()?;
                if answers {
                    return Ok(());
                }
                Err(lockkeeper::Error::new(ErrorKind::Unknown, "no answer").into())
            })
        }))
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

/// Runs a scenario on `store` with the lock that `open` returns.
fn run(
    scenario: Scenario,
    store: &Store,
    held: Duration,
    token: &CancelToken,
    open: impl Fn() -> Box<dyn Lock> + Sync,
) -> Result<RunResult, Error> {
    let (state, cancel) = (store.data.state(), Cancellation::new(token));
    let open = || -> Result<Box<dyn Transactor>, Error> {
        Ok(Box::new(Locked::new(open(), Arc::clone(&state))))
    };
    scenario.run(&Context {
        settings: &Settings {
            threads: 20,
            held,
            ..Settings::default()
        },
        lock: format!("test/{scenario}"),
        grace: Duration::from_secs(1),
        state: state.as_ref(),
        open: &|_| open(),
        meter: &Meter::new(Vec::new(), &cancel)?,
        start_holder: &|hold| Holder::thread(open()?, hold),
        cancel: &cancel,
    })
}

/// Only this scenario looks at tokens.
#[test]
fn lock_with_tokens_that_always_grants_fails_slow() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = lockkeeper::open("memory:").unwrap();
    let specs = StoreSpec::embedded(folder.path()).unwrap();
    for store in &Store::open_all(specs.into(), folder.path()).unwrap() {
        let held = Duration::from_millis(5);
        let run = run(Scenario::Slow, store, held, &CancelToken::new(), || {
            Box::new(AlwaysGrants(tokens.clone()))
        });
        let run = run.unwrap();
        assert!(!run.faults.is_empty(), "{}: {run:?}", store.label);
        assert!(run.oversold > 0, "{}: {run:?}", store.label);
    }
}

#[test]
fn slow_is_tried_again_if_its_release_has_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let specs = vec![StoreSpec::url("memory:")];
    let stores = Store::open_all(specs, folder.path()).unwrap();
    let keeper = lockkeeper::open("memory:").unwrap();
    let (answers, token) = (Arc::new(AtomicBool::new(false)), CancelToken::new());
    let held = Duration::from_millis(5);
    let run = run(
        Scenario::Slow,
        stores.first().unwrap(),
        held,
        &token,
        || Box::new(LosesOneReply(keeper.clone(), Arc::clone(&answers))),
    );
    let run = run.unwrap();
    assert!(answers.load(Ordering::SeqCst));
    assert_eq!((run.admitted, &run.faults[..]), (2, &[][..]), "{run:?}");
}

#[test]
fn cancelling_ends_a_scenario_while_its_threads_think() {
    let folder = tempfile::tempdir().unwrap();
    let specs = vec![StoreSpec::url("memory:")];
    let stores = Store::open_all(specs, folder.path()).unwrap();
    let (store, token) = (stores.first().unwrap(), CancelToken::new());
    let forever = Duration::from_secs(3_600);
    let error = run(Scenario::Gather, store, forever, &token, || {
        Box::new(CancelsOnGrant(token.clone()))
    });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
}
