//! Requests that a cancel ends.

use lockkeeper_core::CancelToken;

use crate::failure::{Failure, unknown};

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
