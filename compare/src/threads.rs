//! Many threads that start at the same time.

use std::sync::OnceLock;
use std::thread::{self, ScopedJoinHandle};

use crossbeam_utils::sync::WaitGroup;

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
    let (arrivals, is_complete) = (WaitGroup::new(), OnceLock::new());
    let (is_complete, work) = (&is_complete, &work);
    thread::scope(|scope| {
        let spawn = |number| {
            let arrived = arrivals.clone();
            let body = move || {
                drop(arrived);
                match is_complete.wait() {
                    true => work(number),
                    // Without all threads there is nothing to measure.
                    false => Err(Error::Interrupted),
                }
            };
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, body).map_err(|error| {
                Error::failed(format!(
                    "the system refused thread {} of {threads}: {error}; use fewer threads",
                    number + 1
                ))
            })
        };
        let started = (0..threads).map(spawn).collect::<Result<Vec<_>, _>>();
        arrivals.wait();
        let watch = Stopwatch::start();
        let _ = is_complete.set(started.is_ok());
        let results: Vec<_> = started?.into_iter().map(joined).collect();
        let elapsed = watch.elapsed();
        Ok((collect(results)?, elapsed))
    })
}

/// Returns the result of a thread; a panic is an error, too.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread.join().unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::failed(format!(
            "a thread panicked: {}; this is a defect, please report it",
            text.unwrap_or("no message")
        )))
    })
}

fn collect<T>(mut results: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
    // A stable sort: the results come first and in their order, interruptions last.
    results.sort_by_key(|result| match result {
        Err(Error::Interrupted) => 1,
        _ => 0,
    });
    results.into_iter().collect()
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
