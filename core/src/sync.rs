//! The primitives that the queue is built on, and the functions that catch panics of the user's
//! code. `tests/model/` compiles the queue against the primitives of a model checker instead.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

/// The number of parts of the queue, each with a mutex of its own.
pub(crate) const SHARDS: usize = 32;

/// Locks, also after a panic elsewhere: every critical section here leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification, at most for `limit`.
pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Option<Duration>,
) -> MutexGuard<'a, T> {
    match limit {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(limit) => {
            let (guard, _) = condvar
                .wait_timeout(guard, limit)
                .unwrap_or_else(PoisonError::into_inner);
            guard
        }
    }
}

/// Runs code of the user or of a backend. Returns `None` if it panicked. The panic goes no further: the engine's own
/// state must not depend on it, and during another panic it would abort the process.
#[inline(always)] // As what calls it: see `release.rs`.
pub(crate) fn run_caught<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(discard).ok()
}

/// Drops what a panic carried. That runs the user's code again.
#[cold]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // Its drop could go on like that.
        std::mem::forget(another);
    }
}
