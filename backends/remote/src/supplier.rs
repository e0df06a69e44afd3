//! Connections that a function of the application makes or lends, or that a client library makes without a
//! time-out.
//!
//! The function is a closure, so it fits every version of r2d2 and other pools. Each call runs on a thread of its
//! own, since nothing else bounds the time of the application's code. So does returning a connection: the pool may
//! ask the server about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::time::Duration;

use lockkeeper_core::Error;

use crate::cancel::{NoResult, call_aside, not_started};
use crate::failure::{Server, senseless, unavailable};

/// The largest number of overdue calls, each of which keeps a thread. With so many, a further call is
/// refused.
const MOST_OVERDUE: isize = 128;

type Supply<C> = dyn Fn(Duration) -> Result<C, Error> + Send + Sync;

/// A function that makes or lends connections. Clones are the same function.
pub struct Supplier<C>(Arc<Parts<C>>);

struct Parts<C> {
    supply: Box<Supply<C>>,
    /// The server to which the function connects. `None` for a function of the application's.
    server: Option<Server>,
    /// The number of calls whose callers have stopped waiting. While calls end, the count may be too small for a
    /// moment.
    overdue: AtomicIsize,
}

impl<C> Clone for Supplier<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> fmt::Debug for Supplier<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supplier").finish_non_exhaustive()
    }
}

impl<C: Send + 'static> Supplier<C> {
    /// Makes a supplier that calls `supply`, a function of the application's, for each connection. Its argument
    /// is the time that is left.
    pub fn new<E>(supply: impl Fn(Duration) -> Result<C, E> + Send + Sync + 'static) -> Self
    where
        E: StdError + Send + Sync + 'static,
    {
        let refused = |error| {
            unavailable(
                "the application's function gave no connection; is the server up, and the application's pool large enough for `pool_size` more?",
            )
            .with_source(error)
        };
        Self::with(Box::new(move |limit| supply(limit).map_err(refused)), None)
    }

    /// Makes a supplier that calls `connect`, which connects to `server`. Its argument is the time that is
    /// left.
    pub fn of_server(
        server: &Server,
        connect: impl Fn(Duration) -> Result<C, Error> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Box::new(connect), Some(server.clone()))
    }

    fn with(supply: Box<Supply<C>>, server: Option<Server>) -> Self {
        Self(Arc::new(Parts {
            supply,
            server,
            overdue: AtomicIsize::new(0),
        }))
    }

    /// Returns a connection within `limit`. The function runs on a thread of its own. If it takes longer, its
    /// connection is dropped.
    ///
    /// # Errors
    /// The error of the function. [`ErrorKind::Unavailable`](lockkeeper_core::ErrorKind::Unavailable) if it takes longer or
    /// panics.
    pub fn take(&self, limit: Duration) -> Result<C, Error> {
        let server = self.0.server.as_ref();
        // `text` is for a function of the application's.
        let late = |text| server.map_or_else(|| unavailable(text), |it| it.says_nothing(""));
        if self.0.overdue.load(Ordering::Relaxed) >= MOST_OVERDUE {
            return Err(late(
                "the application's function for connections hangs in several calls; see what it waits for, and have it return within the time that it is given",
            ));
        }
        let parts = Arc::clone(&self.0);
        let has_one_ended = Arc::new(AtomicBool::new(false));
        let of_call = Arc::clone(&has_one_ended);
        let call = move || {
            let _end = EndOfCall {
                overdue: &parts.overdue,
                has_one_ended: &of_call,
            };
            (parts.supply)(limit)
        };
        match call_aside(limit, None, call) {
            Ok(supplied) => supplied,
            Err(NoResult::NotStarted(error)) => Err(not_started(error)),
            Err(NoResult::Left) => {
                if !has_one_ended.swap(true, Ordering::SeqCst) {
                    self.0.overdue.fetch_add(1, Ordering::Relaxed);
                }
                Err(late(
                    "the application's function gave no connection in time; is the application's pool large enough for `pool_size` more, and does the function return within the time that it is given?",
                ))
            }
            Err(NoResult::Panicked) if server.is_some() => Err(senseless()),
            Err(NoResult::Panicked) => Err(unavailable(
                "the application's function for connections panicked; the panic's own message says why",
            )),
        }
    }
}

/// The end of a call of the application's function, also by a panic.
struct EndOfCall<'a> {
    overdue: &'a AtomicIsize,
    /// Set by the caller that stops waiting, or by the call that ends, whichever is first.
    has_one_ended: &'a AtomicBool,
}

impl Drop for EndOfCall<'_> {
    fn drop(&mut self) {
        if self.has_one_ended.swap(true, Ordering::SeqCst) {
            self.overdue.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Barrier, Mutex, mpsc};
    use std::thread;

    use super::*;

    #[test]
    fn calls_within_their_time_are_no_hang() {
        const CALLS: usize = 2 * MOST_OVERDUE as usize;
        let together = Barrier::new(CALLS);
        let supplier = Supplier::new(move |_| Ok::<_, io::Error>(together.wait().is_leader()));
        thread::scope(|scope| {
            let take = || supplier.take(Duration::from_secs(60)).unwrap();
            let calls: Vec<_> = (0..CALLS).map(|_| scope.spawn(take)).collect();
            let leaders = calls.into_iter().map(|it| it.join().unwrap());
            assert_eq!(leaders.filter(|is_leader| *is_leader).count(), 1);
        });
        assert_eq!(supplier.0.overdue.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn calls_that_end_late_are_counted_until_then() {
        let (go, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let (sender, ended) = mpsc::channel();
        let supplier = Supplier::new(move |_| {
            let _ = gone.lock().unwrap().recv();
            let _ = sender.send(());
            Ok::<_, io::Error>(())
        });
        supplier.take(Duration::from_millis(1)).unwrap_err();
        assert_eq!(supplier.0.overdue.load(Ordering::Relaxed), 1);
        drop(go);
        ended.recv().unwrap();
        while supplier.0.overdue.load(Ordering::Relaxed) != 0 {
            thread::yield_now();
        }
        supplier.take(Duration::from_secs(60)).unwrap();
    }
}
