//! Many threads that start at the same moment.

use std::any::Any;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use crate::error::Failure;
use crate::stopwatch::{Span, Stopwatch};

/// Enough for a store's client, and 10,000 of them still fit.
const STACK_BYTES: usize = 512 * 1024;

/// Starts `threads` threads, lets them all go at once when the last has arrived, and brings back
/// what each returned, with the time from the start to the end of the last.
///
/// A panic in one of them is a failure like others.
pub(crate) fn all_at_once<T: Send>(
    threads: u32,
    work: impl Fn(u32) -> Result<T, Failure> + Sync,
) -> Result<(Vec<T>, Span), Failure> {
    let gate = Gate::default();
    let (gate, work) = (&gate, &work);
    thread::scope(|scope| {
        let mut crew = Vec::new();
        let mut short = None;
        for number in 0..threads {
            let started = thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || gate.pass().then(|| work(number)));
            match started {
                Ok(thread) => crew.push(thread),
                Err(error) => {
                    short = Some(Failure::Failed(format!(
                        "the system refused thread {} of {threads}: {error}; use fewer --threads",
                        number + 1
                    )));
                    break;
                }
            }
        }
        let watch = gate.open(crew.len(), short.is_none());
        let results: Vec<_> = crew.into_iter().map(joined).collect();
        let span = watch.read();
        match short {
            Some(failure) => Err(failure),
            None => Ok((collect(results)?, span)),
        }
    })
}

/// What the thread returned; `None` where it was sent home at the gate.
fn joined<T>(
    thread: ScopedJoinHandle<'_, Option<Result<T, Failure>>>,
) -> Option<Result<T, Failure>> {
    thread
        .join()
        .unwrap_or_else(|panic| Some(Err(panicked(panic.as_ref()))))
}

/// Says that a thread panicked, and what about.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it said nothing");
    Failure::Failed(format!(
        "a thread panicked: {text}; this is a defect, please report it"
    ))
}

/// All results, or the failure that says most: an interruption only where there is nothing else.
fn collect<T>(results: Vec<Option<Result<T, Failure>>>) -> Result<Vec<T>, Failure> {
    let mut all = Vec::with_capacity(results.len());
    let mut interrupted = false;
    for result in results.into_iter().flatten() {
        match result {
            Ok(value) => all.push(value),
            Err(Failure::Interrupted) => interrupted = true,
            Err(failure) => return Err(failure),
        }
    }
    if interrupted {
        return Err(Failure::Interrupted);
    }
    Ok(all)
}

/// Like a barrier, but it can send the threads home when some of them could not be started.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    /// Whether to go to work, once that is decided.
    go: Option<bool>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the opening; true: go to work.
    fn pass(&self) -> bool {
        let mut state = self.lock();
        state.arrived += 1;
        self.changed.notify_all();
        let state = self
            .changed
            .wait_while(state, |state| state.go.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.go == Some(true)
    }

    /// Opens when `expected` threads have arrived.
    fn open(&self, expected: usize, go: bool) -> Stopwatch {
        let mut state = self
            .changed
            .wait_while(self.lock(), |state| state.arrived < expected)
            .unwrap_or_else(PoisonError::into_inner);
        let watch = Stopwatch::start();
        state.go = Some(go);
        self.changed.notify_all();
        watch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_start_together_and_each_brings_something_back() {
        let started = AtomicU32::new(0);
        let (numbers, _) = all_at_once(50, |number| {
            started.fetch_add(1, Ordering::SeqCst);
            Ok(number)
        })
        .unwrap();
        assert_eq!(started.into_inner(), 50);
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_is_told_and_weighs_more_than_an_interruption() {
        let failure = all_at_once(3, |number| match number {
            0 => Err::<(), _>(Failure::Interrupted),
            1 => panic!("boom {number}"),
            _ => Ok(()),
        })
        .unwrap_err();
        assert!(failure.to_string().contains("boom 1"), "{failure}");
    }
}
