//! What a run says, on standard error: to somebody who may have stopped reading, and is not waited for.

use std::ffi::OsStr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::say;

const QUIET: &str = "quiet";
/// How long a line is waited for, so that it stands before what comes after it.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same at the end.
const AT_THE_END: Duration = Duration::from_secs(1);
/// How many lines nobody has read yet; further ones are dropped.
const ROOM: usize = 64;

/// How much is said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voice {
    quiet: bool,
    verbose: bool,
}

impl Voice {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        Self { quiet, verbose }
    }

    /// How the process that becomes the command is told.
    pub(super) fn word(self) -> &'static str {
        if self.quiet { QUIET } else { "aloud" }
    }

    pub(super) fn of_word(word: &OsStr) -> Self {
        Self::new(word == QUIET, false)
    }

    pub(super) fn warn(self, text: &str) {
        if !self.quiet {
            speak(text);
        }
    }

    pub(super) fn tell(self, text: &str) {
        if self.verbose {
            speak(text);
        }
    }
}

/// Until all is said, if that is soon.
pub(super) fn finish() {
    if let Some(Some(speaker)) = SPEAKER.get() {
        speaker.unsaid.wait(AT_THE_END);
    }
}

/// Writes, on a thread of its own. `None`: there can be no thread.
static SPEAKER: OnceLock<Option<Speaker>> = OnceLock::new();

struct Speaker {
    lines: SyncSender<String>,
    unsaid: Arc<Unsaid>,
}

fn speak(text: &str) {
    let Some(speaker) = SPEAKER.get_or_init(Speaker::start) else {
        return say::err(text);
    };
    // Whoever comes behind a line that nobody has read yet does not wait, too.
    let is_first = speaker.unsaid.add();
    if speaker.lines.try_send(text.to_owned()).is_err() {
        speaker.unsaid.remove();
    } else if is_first {
        speaker.unsaid.wait(PATIENCE);
    }
}

impl Speaker {
    fn start() -> Option<Self> {
        let (lines, queue) = sync_channel(ROOM);
        let unsaid = Arc::new(Unsaid::default());
        let counted = Arc::clone(&unsaid);
        let work = move || say_all(&queue, &counted);
        let name = "lockkeeper-voice".to_owned();
        let started = std::thread::Builder::new().name(name).spawn(work);
        started.is_ok().then_some(Self { lines, unsaid })
    }
}

fn say_all(queue: &Receiver<String>, unsaid: &Unsaid) {
    for line in queue {
        say::err(&line);
        unsaid.remove();
    }
}

/// How many lines are on their way.
#[derive(Default)]
struct Unsaid {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Unsaid {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the only one.
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
