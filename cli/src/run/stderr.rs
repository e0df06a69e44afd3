//! Lines on standard error, written by a thread of their own.
//!
//! Standard error may be a full pipe that no process reads. Signals, deadlines and the release of the
//! lock must not wait for that.

use std::ffi::OsStr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::output;

const QUIET: &str = "quiet";
/// How long the caller waits until its line is written, which keeps the order with what the command
/// writes next.
const LINE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long [`flush`] waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How many lines may wait to be written; further ones are dropped.
const CAPACITY: usize = 64;

/// Writes lines to standard error, as far as the user asked for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct StderrWriter {
    quiet: bool,
    verbose: bool,
}

impl StderrWriter {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        Self { quiet, verbose }
    }

    /// Returns the argument that tells the command's process how much to write.
    pub(super) fn as_arg(self) -> &'static str {
        if self.quiet { QUIET } else { "normal" }
    }

    pub(super) fn from_arg(arg: &OsStr) -> Self {
        Self::new(arg == QUIET, false)
    }

    /// Writes a line unless `--quiet` is given.
    pub(super) fn warn(self, text: &str) {
        if !self.quiet {
            write(text);
        }
    }

    /// Writes a line if `--verbose` is given.
    pub(super) fn info(self, text: &str) {
        if self.verbose {
            write(text);
        }
    }
}

/// Waits until all lines are written, for at most a second.
pub(super) fn flush() {
    if let Some(Some(writer)) = WRITER.get() {
        writer.pending.wait(FLUSH_TIMEOUT);
    }
}

/// `None` if the thread could not be started.
static WRITER: OnceLock<Option<WriterThread>> = OnceLock::new();

struct WriterThread {
    lines: SyncSender<String>,
    pending: Arc<PendingLines>,
}

fn write(text: &str) {
    let Some(writer) = WRITER.get_or_init(WriterThread::start) else {
        return output::print_error(text);
    };
    // If an earlier line is not written yet, its caller has waited for it already.
    let is_first = writer.pending.add();
    if writer.lines.try_send(text.to_owned()).is_err() {
        writer.pending.remove();
    } else if is_first {
        writer.pending.wait(LINE_TIMEOUT);
    }
}

impl WriterThread {
    fn start() -> Option<Self> {
        let (lines, queue) = sync_channel(CAPACITY);
        let pending = Arc::new(PendingLines::default());
        let counted = Arc::clone(&pending);
        let work = move || write_all(&queue, &counted);
        let name = "lockkeeper-stderr".to_owned();
        let started = std::thread::Builder::new().name(name).spawn(work);
        started.is_ok().then_some(Self { lines, pending })
    }
}

fn write_all(queue: &Receiver<String>, pending: &PendingLines) {
    for line in queue {
        output::print_error(&line);
        pending.remove();
    }
}

/// The number of lines that were accepted and are not written yet.
#[derive(Default)]
struct PendingLines {
    count: Mutex<usize>,
    changed: Condvar,
}

impl PendingLines {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one line more, and returns whether it is the only one.
    fn add(&self) -> bool {
        let mut count = self.count();
        *count += 1;
        *count == 1
    }

    fn remove(&self) {
        *self.count() -= 1;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration) {
        let waited = self
            .changed
            .wait_timeout_while(self.count(), limit, |count| *count > 0);
        drop(waited);
    }
}
