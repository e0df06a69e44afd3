//! Calls that a cancel ends.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crossbeam_utils::sync::Parker;
use lockkeeper_core::{CancelToken, Error};

use crate::failure::{Failure, senseless, unavailable, unknown};

/// How much longer than its limit a caller waits for a connect on another thread, which ends by the limit with the better
/// error.
const SLACK: Duration = Duration::from_millis(20);

/// Makes a request that a cancel ends by `close`, which closes the connection.
///
/// # Errors
/// The failure of the request. [`Failure::Unanswered`] after a cancel, since the connection may be closed at any moment.
pub fn until_cancelled<T>(
    cancel: Option<&CancelToken>,
    close: Option<impl Fn() + Send + Sync + 'static>,
    request: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let close = cancel.zip(close);
    let registered = close.map(|(cancel, close)| cancel.on_cancel(close));
    let result = request();
    drop(registered);
    match cancel.is_some_and(CancelToken::is_cancelled) {
        true => Err(cancelled()),
        false => result,
    }
}

/// Returns the failure of a request whose caller no longer waits for the reply.
pub fn cancelled() -> Failure {
    unknown("the acquisition was cancelled before a reply came")
}

/// Pauses this thread, or until a cancel.
pub fn pause(time: Duration, cancel: Option<&CancelToken>) {
    // Not `thread::park`, which would take an `unpark` that the caller's program waits for.
    let parker = Parker::new();
    let unparker = parker.unparker().clone();
    let _wake = cancel.map(|cancel| cancel.on_cancel(move || unparker.unpark()));
    if !cancel.is_some_and(CancelToken::is_cancelled) {
        parker.park_timeout(time);
    }
}

/// Connects, or makes another call that nothing can end, and that ends by itself after `limit`. If the caller can be
/// cancelled, a thread of its own makes the call. After a cancel, that thread drops the result.
///
/// # Errors
/// Those of the call; also after a cancel.
pub fn connect_until_cancelled<T: Send + 'static>(
    limit: Duration,
    cancel: Option<&CancelToken>,
    connect: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if cancel.is_none() {
        return connect();
    }
    match call_aside(limit.saturating_add(SLACK), cancel, connect) {
        Ok(connected) => connected,
        Err(NoResult::NotStarted(error)) => Err(not_started(error)),
        Err(NoResult::Left) => Err(unavailable(
            "no connection was open in time; does the system's resolver find the server's addresses, and is the server running?",
        )),
        Err(NoResult::Panicked) => Err(senseless()),
    }
}

/// Returns the error of a thread that connects and cannot be started.
pub(crate) fn not_started(error: io::Error) -> Error {
    let text = "the thread on which a connection is made cannot be started; is the limit of threads reached?";
    unavailable(text).with_source(error)
}

/// Why there is no result of a call on another thread.
pub(crate) enum NoResult {
    /// The thread cannot be started.
    NotStarted(io::Error),
    /// The time is over, or the caller was cancelled. The call goes on.
    Left,
    /// The call panicked.
    Panicked,
}

/// Makes a call on a thread of its own, since nothing can end it, and returns its result within `limit` and before a
/// cancel. A later result is dropped.
pub(crate) fn call_aside<T: Send + 'static>(
    limit: Duration,
    cancel: Option<&CancelToken>,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoResult> {
    let (reply, replied) = channel();
    let leave = reply.clone();
    let reply = OnThread(reply);
    let call = move || drop(reply.0.send(Some(call())));
    let thread = thread::Builder::new().name("lockkeeper-connect".to_owned());
    thread.spawn(call).map_err(NoResult::NotStarted)?;
    let _registered = cancel.map(|it| it.on_cancel(move || drop(leave.send(None))));
    match replied.recv_timeout(limit) {
        Ok(Some(result)) => Ok(result),
        Ok(None) if !cancel.is_some_and(CancelToken::is_cancelled) => Err(NoResult::Panicked),
        Ok(None) | Err(_) => Err(NoResult::Left),
    }
}

/// The thread's end of a call's channel. It tells the caller of a panic.
struct OnThread<T>(Sender<Option<T>>);

impl<T> Drop for OnThread<T> {
    fn drop(&mut self) {
        // The caller may have gone.
        let _ = self.0.send(None);
    }
}
