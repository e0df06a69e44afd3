//! Opening the store, which may come up within `--wait`.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{LockKeeper, Observer, Wait};
use lockkeeper_remote::Backoff;
use rustix::process::Signal;

use super::signals::{Event, EventForwarder, end_signal};
use super::stderr;
use crate::args;
use crate::failure::{Failure, UNAVAILABLE};
use crate::settings;

/// The longest pause before the second attempt. The pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How opening ended, if not by an error.
pub(super) enum Opened {
    Store(LockKeeper),
    /// A signal asked this process to end.
    Signal(Signal),
}

/// Returns until when `--wait` lets the store come up: now, if it is not given.
pub(super) fn deadline(args: &args::Run) -> HostInstant {
    let now = SystemClock.now();
    match args.wait {
        Some(Wait::Forever) => HostInstant::NEVER,
        Some(Wait::AtMost(wait)) => now + wait,
        None => now,
    }
}

/// Opens the store. While it is out of reach, tries again until the deadline.
///
/// Until then only the first store is tried. It may be about to start, and on a fallback this process
/// would not exclude those that find the first store a little later.
pub(super) fn open(
    args: &args::Run,
    until: HostInstant,
    sender: Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Opened, Failure> {
    let observer: Arc<dyn Observer> = Arc::new(EventForwarder(sender));
    // A fallback that cannot be opened for its settings is found before any store is contacted.
    settings::check(&args.store)?;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut is_reported = false;
    loop {
        let left = until.saturating_since(SystemClock.now());
        let opened = settings::open(&args.store, |config| {
            let config = config.observer(Arc::clone(&observer));
            match left.is_zero() {
                true => config,
                false => config.without_fallbacks(),
            }
        });
        let failure = match opened {
            Err(failure) if failure.code == UNAVAILABLE && !left.is_zero() => failure,
            opened => {
                return match end_signal(events, Duration::ZERO) {
                    Some(signal) => Ok(Opened::Signal(signal)),
                    None => opened.map(Opened::Store),
                };
            }
        };
        if !std::mem::replace(&mut is_reported, true) {
            stderr::info(&format!("{failure}; lockkeeper tries again"));
        }
        if let Some(signal) = end_signal(events, backoff.next_pause().min(left)) {
            return Ok(Opened::Signal(signal));
        }
    }
}
