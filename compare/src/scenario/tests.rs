//! Every scenario finds the fault of a broken lock.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{CancelToken, FencingToken, LockKeeper};
use parking_lot::{Condvar, Mutex};

use super::Scenario;
use super::context::{Context, RunResult};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::holder::Holder;
use crate::meter::Meter;
use crate::settings::Settings;
use crate::store::Store;
use crate::store::spec::StoreSpec;
use crate::store::state::State;
use crate::strategy::lock::{Held, Lock, LockRequest};
use crate::strategy::none::NoLock;
use crate::strategy::transaction::{Locked, Transactor};

const THREADS: u32 = 20;
/// Far longer than a busy machine takes to run a thread.
const LIMIT: Duration = Duration::from_secs(120);

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

/// A state that is written only after so many reads since its last reset. Without a lock there are that many, so
/// the threads overlap however busy the machine is.
struct WrittenLate {
    state: Arc<dyn State>,
    needed: u32,
    reads: Mutex<u32>,
    read: Condvar,
}

impl WrittenLate {
    fn new(state: Arc<dyn State>, needed: u32) -> Arc<Self> {
        Arc::new(Self {
            state,
            needed,
            reads: Mutex::default(),
            read: Condvar::new(),
        })
    }
}

impl State for WrittenLate {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        *self.reads.lock() = 0;
        self.state.reset(values)
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        let value = self.state.read(cell);
        *self.reads.lock() += 1;
        self.read.notify_all();
        value
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        let mut reads = self.reads.lock();
        while *reads < self.needed {
            let waited = self.read.wait_for(&mut reads, LIMIT);
            assert!(!waited.timed_out(), "{reads} reads of {}", self.needed);
        }
        drop(reads);
        self.state.write(cell, value)
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        self.state.write_fenced(value, token)
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        self.state.record(user)
    }

    fn recorded(&self) -> Result<i64, Error> {
        self.state.recorded()
    }
}

/// Returns how many reads come before the first write where no lock prevents them: of two threads, or of the
/// three seats of every party.
fn reads_before_writes(scenario: Scenario) -> u32 {
    match scenario {
        Scenario::Gather | Scenario::Stock | Scenario::Seat => 2,
        Scenario::Party => 3 * THREADS,
        // Their threads come in an order of events, or go on until they have overlapped.
        _ => 0,
    }
}

type Opened = Result<Box<dyn Transactor>, Error>;

fn run(
    scenario: Scenario,
    state: &Arc<dyn State>,
    held: Duration,
    cancel: &Cancellation,
    open: impl Fn() -> Opened + Sync,
) -> Result<RunResult, Error> {
    scenario.run(&Context {
        settings: &Settings {
            threads: THREADS,
            items: 5,
            held,
            ..Settings::default()
        },
        lock: format!("test/{scenario}"),
        state: state.as_ref(),
        open: &|_| open(),
        meter: &Meter::new(Vec::new(), cancel)?,
        start_holder: &|hold| Holder::thread(open()?, hold),
        cancel,
    })
}

/// The rows of the command show the same without a lock, and that a good lock passes (`cli/tests/compare.rs`).
#[test]
fn lock_that_always_grants_fails_every_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = lockkeeper::open("memory:").unwrap();
    let cancel = Cancellation::new(&CancelToken::new());
    let held = Duration::from_millis(5);
    let specs = StoreSpec::embedded(folder.path()).unwrap();
    for store in &Store::open_all(specs.into(), folder.path()).unwrap() {
        for scenario in Scenario::ALL {
            let what = format!("{scenario} on {}", store.label);
            let needed = reads_before_writes(scenario);
            let state: Arc<dyn State> = WrittenLate::new(store.data.state(), needed);
            let run = run(scenario, &state, held, &cancel, || {
                let lock = Box::new(AlwaysGrants(tokens.clone()));
                Ok(Box::new(Locked::new(lock, Arc::clone(&state))))
            });
            let run = run.unwrap();
            assert!(!run.faults.is_empty(), "{what}: {run:?}");
            assert!(run.oversold > 0, "{what}: {run:?}");
        }
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
    let state = store.data.state();
    let error = run(Scenario::Gather, &state, forever, &cancel, || {
        let lock = Box::new(CancelsOnGrant(token.clone()));
        Ok(Box::new(Locked::new(lock, Arc::clone(&state))))
    })
    .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
}
