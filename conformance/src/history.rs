//! The history of a name: a file to which every holder appends a line when its hold begins, and another
//! before it ends. The file orders the holds of all threads and processes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, Error, LockKeeper, Mode};

use crate::mode_text;
use crate::temp_file::TempFile;

/// How long a holder works, so that holds overlap where the mode permits it.
const WORK: Duration = Duration::from_millis(1);

/// How long a thread may wait for all earlier holders, on a busy machine.
const WAIT: Duration = Duration::from_secs(300);

const TIMED_OUT: &str = "busy until the end of the wait";

/// A history that is empty at first.
pub(crate) struct History(TempFile);

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    mode: Mode,
    slot: u32,
    token: u64,
    pid: u32,
}

/// Holds `name` on `threads` threads of each keeper, `rounds` times on each thread, with the modes
/// in turn. Appends the holds to the history at `path`.
pub(crate) fn hold_by_threads(
    keepers: &[LockKeeper],
    name: &str,
    modes: &[Mode],
    (threads, rounds): (usize, usize),
    path: &Path,
) -> Result<(), String> {
    let failure = Mutex::new(Ok(()));
    thread::scope(|scope| {
        for keeper in keepers {
            for mode in modes.iter().cycle().take(threads) {
                let failure = &failure;
                scope.spawn(move || {
                    let result = (0..rounds).try_for_each(|_| hold(keeper, name, *mode, path));
                    if let Err(text) = result {
                        *failure.lock().expect("no thread panics") = Err(text);
                    }
                });
            }
        }
    });
    failure.into_inner().expect("no thread panics")
}

fn hold(keeper: &LockKeeper, name: &str, mode: Mode, path: &Path) -> Result<(), String> {
    let file = OpenOptions::new().append(true).open(path);
    let mut file = file.map_err(|error| error.to_string())?;
    let mut record = |slot, token| {
        let hold = Hold {
            mode,
            slot,
            token,
            pid: std::process::id(),
        };
        append(&mut file, "+", hold)?;
        thread::sleep(WORK);
        append(&mut file, "-", hold)
    };
    let failed = |error: Error| format!("{error:?}");
    let options = AcquireOptions::new().wait(WAIT);
    if let Mode::Permit { limit } = mode {
        let semaphore = keeper.semaphore(name, limit).map_err(failed)?;
        let permit = semaphore.acquire_with(&options).map_err(failed)?;
        let permit = permit.ok_or(TIMED_OUT)?;
        return record(permit.slot(), permit.token().get());
    }
    let guard = keeper.acquire(name, &options.mode(mode)).map_err(failed)?;
    let guard = guard.ok_or(TIMED_OUT)?;
    record(0, guard.token().get())
}

fn append(file: &mut File, event: &str, hold: Hold) -> Result<(), String> {
    let mode = mode_text::text(hold.mode);
    let line = format!("{event} {mode} {} {} {}\n", hold.slot, hold.token, hold.pid);
    // A single write appends the whole line, also beside other processes that write.
    file.write_all(line.as_bytes())
        .map_err(|error| error.to_string())
}

impl History {
    pub(crate) fn new() -> Self {
        Self(TempFile::new(""))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).expect("the file exists")
    }

    /// Returns how many holds have begun or ended so far.
    pub(crate) fn events(&self) -> usize {
        self.text().lines().count()
    }

    /// Asserts that the history has `holds` holds, that holds which exclude each other did not overlap, and
    /// that the tokens grew. The holds of the process `killed` are ignored, since it did not record their
    /// ends.
    pub(crate) fn check(&self, holds: usize, killed: Option<u32>) {
        let text = self.text();
        let (mut present, mut past): (Vec<Hold>, Vec<Hold>) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let (event, hold) = parse(line).unwrap_or_else(|| panic!("incomplete: {line:?}"));
            if Some(hold.pid) == killed {
                continue;
            }
            if event == "-" {
                let ended = present.iter().position(|other| *other == hold);
                present.swap_remove(ended.expect("a hold begins before it ends"));
                continue;
            }
            assert!(
                hold.may_join(&present),
                "{hold:?} was granted beside {present:?}"
            );
            let later = past.iter().find(|old| !hold.may_follow(old));
            assert_eq!(later, None, "{hold:?} was granted with too small a token");
            present.push(hold);
            past.push(hold);
        }
        assert_eq!(present, [], "these holds did not end");
        assert_eq!(past.len(), holds, "the number of holds");
    }
}

fn parse(line: &str) -> Option<(&str, Hold)> {
    let mut words = line.split(' ');
    let event = words.next()?;
    let hold = Hold {
        mode: mode_text::parse(words.next()?)?,
        slot: words.next()?.parse().ok()?,
        token: words.next()?.parse().ok()?,
        pid: words.next()?.parse().ok()?,
    };
    Some((event, hold))
}

impl Hold {
    fn may_join(&self, present: &[Hold]) -> bool {
        match self.mode {
            Mode::Exclusive => present.is_empty(),
            Mode::Shared => present.iter().all(|other| other.mode == Mode::Shared),
            Mode::Permit { limit } => {
                self.slot < limit
                    && present.len() < limit as usize
                    && present.iter().all(|other| other.slot != self.slot)
            }
        }
    }

    /// Returns whether the tokens of two holds have the right order. Holds that may overlap have no order.
    fn may_follow(&self, before: &Hold) -> bool {
        let have_order = match (before.mode, self.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Permit { .. }, Mode::Permit { .. }) => before.slot == self.slot,
            _ => true,
        };
        !have_order || before.token < self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str], holds: usize) -> bool {
        let history = History::new();
        let text: String = lines.iter().map(|line| format!("{line} 1\n")).collect();
        std::fs::write(history.path(), text).unwrap();
        std::panic::catch_unwind(|| history.check(holds, None)).is_ok()
    }

    #[test]
    fn overlap_of_a_writer_is_found() {
        let sound = [
            "+ shared 0 1",
            "+ shared 0 2",
            "- shared 0 1",
            "- shared 0 2",
            "+ exclusive 0 3",
            "- exclusive 0 3",
        ];
        assert!(verdict(&sound, 3));
        assert!(!verdict(&sound, 4), "a hold is missing");
        assert!(!verdict(&["+ shared 0 1", "+ exclusive 0 2"], 2));
        assert!(!verdict(&["+ exclusive 0 1", "+ shared 0 2"], 2));
    }

    #[test]
    fn permits_above_the_limit_and_equal_slots_are_found() {
        let end = ["- permit:2 0 1", "- permit:2 1 2"];
        let begin = ["+ permit:2 0 1", "+ permit:2 1 2"];
        assert!(verdict(&[begin, end].concat(), 2));
        assert!(!verdict(&["+ permit:2 0 1", "+ permit:2 0 2"], 2));
        assert!(!verdict(&["+ permit:1 0 1", "+ permit:1 1 2"], 2));
    }

    #[test]
    fn tokens_that_do_not_grow_are_found() {
        assert!(!verdict(
            &[
                "+ exclusive 0 2",
                "- exclusive 0 2",
                "+ shared 0 2",
                "- shared 0 2"
            ],
            2
        ));
        assert!(!verdict(
            &[
                "+ permit:2 1 2",
                "- permit:2 1 2",
                "+ permit:2 1 1",
                "- permit:2 1 1"
            ],
            2
        ));
    }
}
