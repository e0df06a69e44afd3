//! Lines on standard error, written by a thread of their own.
//!
//! Standard error may be a full pipe that no process reads. Signals, deadlines and the release of the
//! lock must not wait for that.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::output;

/// How long the caller waits until its line is written, which keeps the order with what the command
/// writes next.
const LINE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long [`flush`] waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How many lines may wait to be written; further ones are dropped.
const CAPACITY: usize = 64;

/// Which lines the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Quiet,
    Normal,
    Verbose,
}

static LEVEL: OnceLock<Level> = OnceLock::new();

/// Sets the level for this process. Only the first call has an effect.
pub(super) fn set_level(level: Level) {
    let _ = LEVEL.set(level);
}

pub(super) fn level() -> Level {
    LEVEL.get().copied().unwrap_or(Level::Normal)
}

/// Writes a line unless `--quiet` is given.
pub(super) fn warn(text: &str) {
    if level() >= Level::Normal {
        write(text);
    }
}

/// Writes a line if `--verbose` is given.
pub(super) fn info(text: &str) {
    if level() >= Level::Verbose {
        write(text);
    }
}

/// Waits until all lines are written, for at most a second.
pub(super) fn flush() {
    if let Some(Some(writer)) = WRITER.get() {
        let last = writer.last.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner).clone();
        is_written(&last, FLUSH_TIMEOUT);
    }
}

/// `None` if the thread could not be started.
static WRITER: OnceLock<Option<WriterThread>> = OnceLock::new();

struct WriterThread {
    /// Each line comes with a sender, which is dropped when the line is written.
    lines: Sender<(String, Sender<()>)>,
    /// The channel of the line that was accepted last.
    last: Mutex<Receiver<()>>,
}

impl WriterThread {
    fn start() -> Option<Self> {
        let (lines, queue) = bounded::<(String, Sender<()>)>(CAPACITY);
        let work = move || {
            for (line, _written) in queue {
                output::print_error(&line);
            }
        };
        let name = "lockkeeper-stderr".to_owned();
        let started = std::thread::Builder::new().name(name).spawn(work);
        let last = Mutex::new(bounded(0).1);
        started.is_ok().then_some(Self { lines, last })
    }
}

fn write(text: &str) {
    let Some(writer) = WRITER.get_or_init(WriterThread::start) else {
        return output::print_error(text);
    };
    let (written, own) = bounded(0);
    let mut last = writer.last.lock().unwrap_or_else(PoisonError::into_inner);
    if writer.lines.try_send((text.to_owned(), written)).is_ok() {
        let previous = std::mem::replace(&mut *last, own.clone());
        drop(last);
        // If an earlier line is not written yet, its caller has waited for it already.
        if is_written(&previous, Duration::ZERO) {
            is_written(&own, LINE_TIMEOUT);
        }
    }
}

/// Waits at most `limit`, and returns whether a line is written.
fn is_written(line: &Receiver<()>, limit: Duration) -> bool {
    line.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
}
