//! Opening the store, which may come up within `--wait`.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use lockkeeper::{CancelToken, LockKeeper};
use rustix::process::Signal;

use super::signals::{Event, EventForwarder, end_signal};
use crate::args;
use crate::failure::Failure;
use crate::settings;

/// How opening ended, if not by an error.
pub(super) enum Opened {
    Store(LockKeeper),
    /// A signal asked this process to end.
    Signal(Signal),
}

/// Opens the store. While it is out of reach, tries again as long as `--wait` says, or `open_wait` if
/// neither `--wait` nor `--no-wait` is given.
///
/// Until then only the first store is tried. It may be about to start, and on a fallback this process
/// would not exclude those that find the first store a little later.
pub(super) fn open(
    args: &args::Run,
    cancel: &CancelToken,
    sender: Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Opened, Failure> {
    let options = args.wait.opening().cancel(cancel);
    let observer = Arc::new(EventForwarder::new(sender));
    let opened = settings::open(&args.store, &options, |config| config.observer(observer));
    match end_signal(events, Duration::ZERO) {
        Some(signal) => Ok(Opened::Signal(signal)),
        None => opened.map(Opened::Store),
    }
}
