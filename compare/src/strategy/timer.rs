//! The timer by which a recipe keeps the lease of a hold alive.

use std::convert::Infallible;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::error::Error;

/// Calls `renew` at this interval on a thread of its own. The timer ends when the returned sender is dropped.
///
/// No recipe tells the holder what the timer finds, so `renew` returns nothing.
pub(super) fn start(
    interval: Duration,
    renew: impl Fn() + Send + 'static,
) -> Result<Sender<Infallible>, Error> {
    let (held, released) = bounded::<Infallible>(0);
    let run = move || {
        while released.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            renew();
        }
    };
    let thread = thread::Builder::new().name("keep-alive".to_owned());
    thread
        .spawn(run)
        .map_err(|error| Error::failed(format!("cannot start a timer: {error}")))?;
    Ok(held)
}
