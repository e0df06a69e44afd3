//! Threads that begin their work at the same moment.

use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// An error that a thread can hand to another one.
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// Runs `work` in `threads` threads, with the number of each thread. Returns the results, and the time
/// from the common start to the end of the last thread.
pub(crate) fn together<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Result<T, Failed> + Sync,
) -> Result<(Vec<T>, Duration), Box<dyn Error>> {
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|number| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    work(number)
                })
            })
            .collect();
        barrier.wait();
        let began = Instant::now();
        let mut results = Vec::new();
        for thread in started {
            let result = thread.join().map_err(|_| "a thread panicked")?;
            results.push(result.map_err(|failed| failed as Box<dyn Error>)?);
        }
        Ok((results, began.elapsed()))
    })
}
