//! Calls that continue after their caller has stopped waiting: a call that is cut short leaves its
//! connection in doubt, and with it the locks of other callers.

use std::sync::mpsc::{Receiver, SendError, sync_channel};
use std::thread;

use lockkeeper_remote::Failure;

use crate::failure::unavailable;

/// Runs `work` on a thread of its own, and sends its result. If the caller has dropped the receiver, the
/// result goes to `late`.
pub(crate) fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<Receiver<T>, Failure> {
    // The channel has no buffer in which a result could stay: it is received, or it comes back.
    let (sender, receiver) = sync_channel(0);
    let run = move || {
        if let Err(SendError(result)) = sender.send(work()) {
            late(result);
        }
    };
    let thread = thread::Builder::new().name("lockkeeper-mysql-call".to_owned());
    match thread.spawn(run) {
        Ok(_) => Ok(receiver),
        Err(error) => Err(Failure::NotSent(
            unavailable("the thread that asks the server cannot be started; is the limit of threads reached?")
                .with_source(error),
        )),
    }
}
