//! Threads that return a result.

use std::io;
use std::thread::ScopedJoinHandle;

/// Waits for all threads, and returns the first error.
pub(crate) fn join_all<'a>(
    threads: impl IntoIterator<Item = ScopedJoinHandle<'a, io::Result<()>>>,
) -> io::Result<()> {
    let join = |thread: ScopedJoinHandle<'_, _>| {
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        thread.join().unwrap_or_else(panicked)
    };
    let results: Vec<_> = threads.into_iter().map(join).collect();
    results.into_iter().collect()
}
