//! Many threads that start at the same moment.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_utils::sync::WaitGroup;

use crate::cancel::Latch;
use crate::error::Error;
use crate::stopwatch::{Elapsed, Stopwatch};

/// Enough for a store's client, and 10,000 of them still fit into memory.
const STACK_BYTES: usize = 512 * 1024;

/// Runs `work` on as many threads, which all begin at once when the last one has started. Returns
/// their results, and the time from the beginning to the end of the last thread.
///
/// # Errors
/// The first error of a thread; a panic is an error, too. [`Error::Interrupted`] is returned only
/// if there is no other error.
pub(crate) fn barrier_start<T: Send>(
    threads: u32,
    work: impl Fn(u32) -> Result<T, Error> + Sync,
) -> Result<(Vec<T>, Elapsed), Error> {
    let (arrivals, barrier) = (WaitGroup::new(), Latch::new());
    let is_complete = AtomicBool::new(true);
    let (barrier, is_complete, work) = (&barrier, &is_complete, &work);
    thread::scope(|scope| {
        let mut started = Vec::new();
        let mut refused = None;
        for number in 0..threads {
            let arrived = arrivals.clone();
            let body = move || {
                drop(arrived);
                barrier.wait();
                // Without all threads there is nothing to measure.
                let may_work = is_complete.load(Ordering::SeqCst);
                may_work.then(|| work(number))
            };
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            match builder.spawn_scoped(scope, body) {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    is_complete.store(false, Ordering::SeqCst);
                    refused = Some(Error::failed(format!(
                        "the system refused thread {} of {threads}: {error}; use fewer threads",
                        number + 1
                    )));
                    break;
                }
            }
        }
        arrivals.wait();
        let watch = Stopwatch::start();
        barrier.open();
        let joined = started.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| Some(Err(panicked(panic.as_ref()))))
        });
        let results: Vec<_> = joined.flatten().collect();
        let elapsed = watch.elapsed();
        match refused {
            Some(error) => Err(error),
            None => Ok((collect(results)?, elapsed)),
        }
    })
}

/// Describes the panic of a thread.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    Error::failed(format!(
        "a thread panicked: {text}; this is a defect, please report it"
    ))
}

fn collect<T>(results: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
    let mut all = Vec::with_capacity(results.len());
    let mut is_interrupted = false;
    for result in results {
        match result {
            Ok(value) => all.push(value),
            Err(Error::Interrupted) => is_interrupted = true,
            Err(error) => return Err(error),
        }
    }
    match is_interrupted {
        true => Err(Error::Interrupted),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_run_at_once_and_results_keep_their_order() {
        let all_work = Barrier::new(50);
        let (numbers, _) = barrier_start(50, |number| {
            all_work.wait();
            Ok(number)
        })
        .unwrap();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn panic_is_reported_rather_than_interruption() {
        let error = barrier_start(3, |number| match number {
            0 => Err::<(), _>(Error::Interrupted),
            1 => panic!("boom {number}"),
            _ => Ok(()),
        })
        .unwrap_err();
        assert!(error.to_string().contains("boom 1"), "{error}");
    }
}
