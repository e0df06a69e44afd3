//! Calls that continue after their caller has stopped waiting: a call that is cut short leaves its
//! connection in doubt, and with it the locks of other callers.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use lockkeeper_remote::Failure;

use crate::failure::unavailable;

/// Runs `work` on a thread of its own. `work` sends its result, which comes back as an error if the
/// caller has dropped the receiver.
pub(crate) fn start<T: Send + 'static>(
    work: impl FnOnce(SyncSender<T>) + Send + 'static,
) -> Result<Receiver<T>, Failure> {
    // The channel has no buffer in which a result could stay.
    let (sender, receiver) = sync_channel(0);
    let thread = thread::Builder::new().name("lockkeeper-mysql-call".to_owned());
    let spawned = thread.spawn(move || work(sender));
    spawned.map(|_| receiver).map_err(|error| {
        let text =
            "the thread that asks the server cannot be started; is the limit of threads reached?";
        Failure::NotSent(unavailable(text).with_source(error))
    })
}
