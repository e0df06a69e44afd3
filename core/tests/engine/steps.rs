//! Steps that many tests share, and how they wait.

use std::fmt::Debug;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireOptions, Error, ErrorKind, LeasePolicy, LockGuard, LockKeeper};

use crate::scripted_store::ScriptedStore;

/// How long a test waits for an event before it fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns a store that takes one operation in a call, with a keeper.
pub(crate) fn scripted() -> (Arc<ScriptedStore>, LockKeeper) {
    with_keeper(ScriptedStore::new())
}

/// Returns a store that takes several operations in a call, with a keeper.
pub(crate) fn batching() -> (Arc<ScriptedStore>, LockKeeper) {
    with_keeper(ScriptedStore::with_batches())
}

fn with_keeper(store: Arc<ScriptedStore>) -> (Arc<ScriptedStore>, LockKeeper) {
    let keeper = store.keeper();
    (store, keeper)
}

/// Options for a lease that is not renewed.
pub(crate) fn fixed(ttl: Duration) -> AcquireOptions {
    AcquireOptions::new().lease(LeasePolicy::Fixed { ttl })
}

/// Gives other threads time to do what they must not do. A test that is too quick sees less, and fails
/// no more for it.
pub(crate) fn give_time() {
    // Each yield of a busy machine takes some milliseconds.
    let ends = Instant::now() + Duration::from_millis(20);
    for _ in 0..2_000 {
        thread::yield_now();
        if Instant::now() > ends {
            return;
        }
    }
}

/// Waits until `is_done`, which other threads bring about.
pub(crate) fn eventually(what: &str, is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_done() {
        assert!(Instant::now() < deadline, "{what}");
        // After a sleep, a thread runs sooner than after a yield where other processes use all processors.
        thread::sleep(Duration::from_micros(50));
    }
}

/// Waits until a renewal at the present time of the clock has moved the deadline: to the ttl of 12 s less the margin.
pub(crate) fn wait_until_renewed(guard: &LockGuard) {
    eventually("the deadline should move", || {
        guard.remaining() == 11 * SECOND
    });
}

pub(crate) fn wait_until_lost(guard: &LockGuard) {
    eventually("the guard is lost", || !guard.is_held());
}

#[track_caller]
pub(crate) fn assert_fails<T: Debug>(answer: Result<T, Error>, kind: ErrorKind) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
}

pub(crate) fn lock_each<const N: usize>(keeper: &LockKeeper, names: [&str; N]) -> [LockGuard; N] {
    names.map(|name| keeper.lock(name).unwrap())
}

/// An acquisition by a thread of its own.
pub(crate) type Acquiring = JoinHandle<Result<Option<LockGuard>, Error>>;

pub(crate) fn spawn_acquire(keeper: &LockKeeper, name: &str, options: AcquireOptions) -> Acquiring {
    let (keeper, name) = (keeper.clone(), name.to_owned());
    thread::spawn(move || keeper.acquire(name, &options))
}

pub(crate) fn forever() -> AcquireOptions {
    AcquireOptions::new().wait_forever()
}

pub(crate) fn granted(acquiring: Acquiring) -> LockGuard {
    acquiring.join().unwrap().unwrap().expect("it is free")
}

pub(crate) fn failed(acquiring: Acquiring) -> Error {
    acquiring.join().unwrap().unwrap_err()
}
