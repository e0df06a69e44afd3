//! Connections that the application makes or lends.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use lockkeeper_core::Error;

use crate::failure::unavailable;

/// The largest number of calls of the application's function that may be under way. Also of a large pool, more than this
/// come together only if the function hangs.
const MOST_PENDING: usize = 128;

type Supply<C> = dyn Fn(Duration) -> Result<C, Error> + Send + Sync;

/// A function of the application's that makes or lends connections. Clones are the same function.
pub struct Supplier<C>(Arc<Parts<C>>);

struct Parts<C> {
    supply: Box<Supply<C>>,
    /// Each call that is under way has a clone.
    pending: Arc<()>,
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
    /// Calls `supply` for each connection, with the time that is left for it.
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
        Self(Arc::new(Parts {
            supply: Box::new(move |limit| supply(limit).map_err(refused)),
            pending: Arc::default(),
        }))
    }

    /// Returns a connection within `limit`. The function runs on a thread of its own: it may take longer, and the
    /// connection that comes late is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](lockkeeper_core::ErrorKind::Unavailable), with the application's error as its source.
    pub fn take(&self, limit: Duration) -> Result<C, Error> {
        if Arc::strong_count(&self.0.pending) > MOST_PENDING {
            return Err(unavailable(
                "the application's function for connections hangs in several calls; see what it waits for, and have it return within the time that it is given",
            ));
        }
        let (reply, replied) = mpsc::channel();
        let (parts, pending) = (Arc::clone(&self.0), Arc::clone(&self.0.pending));
        let call = move || {
            // If the caller has stopped waiting, this drops the connection.
            let _ = reply.send((parts.supply)(limit));
            drop(pending);
        };
        let thread = thread::Builder::new().name("lockkeeper-connect".to_owned());
        thread.spawn(call).map_err(|error| {
            let text = "the thread on which the application's function makes a connection cannot be started; is the limit of threads reached?";
            unavailable(text).with_source(error)
        })?;
        match replied.recv_timeout(limit) {
            Ok(supplied) => supplied,
            Err(RecvTimeoutError::Timeout) => Err(unavailable(
                "the application's function gave no connection in time; is the application's pool large enough for `pool_size` more, and does the function return within the time that it is given?",
            )),
            Err(RecvTimeoutError::Disconnected) => Err(unavailable(
                "the application's function for connections panicked; the panic's own message says why",
            )),
        }
    }
}
