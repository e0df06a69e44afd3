//! The log of a worker process: one line of JSON for each record.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use lockkeeper::clock::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

/// Returns the time now in nanoseconds of CLOCK_BOOTTIME, on which all processes of the host agree.
pub(crate) fn now() -> u64 {
    SystemClock.now().as_nanos()
}

/// Returns a duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What one thread of a worker saw, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The time, as [`now`] returns it; each event says whether it was read before or after the call.
    pub(crate) at: u64,
    /// The number of the thread in its process. A call for several names has one more for each further name: the
    /// records of each name are then in order.
    pub(crate) thread: u32,
    /// What the thread saw.
    pub(crate) event: Event,
}

/// What a thread of a worker saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// It requests a lock. The time is before the call.
    Asked {
        /// The number of the name.
        name: u32,
        /// The longest wait, in nanoseconds.
        wait: u64,
        /// Whether the lock may be shared with others.
        is_shared: bool,
    },
    /// The lock was granted. The time is after the call.
    Granted {
        /// The guard's token.
        token: u64,
        /// The slot of a permit; 0 of a lock.
        slot: u32,
    },
    /// The lock was not granted. The time is after the call.
    NotGranted {
        /// Why.
        why: Refusal,
    },
    /// The guard said that it is held. The time is before the guard was asked.
    Held,
    /// The guard said that it is not held. The time is after the guard was asked.
    Lost,
    /// The guard was renewed by the program. The time is after the call.
    Renewed {
        /// The kind of the error, if there was one.
        error: Option<Kind>,
    },
    /// The guard was released or dropped. The time is after the call.
    Ended {
        /// The time before the call.
        began: u64,
        /// What was called, and what it found.
        how: Ending,
    },
    /// The store could not be opened.
    NotOpened {
        /// The kind of the error.
        error: Kind,
    },
    /// All guards of the process are gone, and the store still lists a name.
    Left {
        /// The name.
        name: String,
    },
}

/// Why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Refusal {
    /// Another holder had it until the end of the wait.
    Busy,
    /// An error of this kind.
    Error(Kind),
}

/// The kind of an error, and whether the program may try again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// The kind's name.
    pub(crate) name: String,
    /// Whether a fault may cause an error of this kind.
    pub(crate) is_expected: bool,
    /// What the error said, if it was not expected.
    pub(crate) text: Option<String>,
}

impl From<&lockkeeper::Error> for Kind {
    fn from(error: &lockkeeper::Error) -> Self {
        use lockkeeper::ErrorKind::{Cancelled, Lost};

        let kind = error.kind();
        let is_expected = kind.is_retryable() || matches!(kind, Cancelled | Lost);
        Self {
            name: format!("{kind:?}"),
            is_expected,
            text: (!is_expected).then(|| format!("{error:?}")),
        }
    }
}

/// How a guard's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// The guard was dropped.
    Dropped,
    /// `release` freed the lock.
    Released,
    /// `release` found that the lock was lost before.
    AlreadyLost,
    /// `release` has no answer of the store.
    Unknown,
}

/// Appends records to the log of this process.
///
/// Each record is one `write` to the end of the file. So it is in the file when the call returns, also if the
/// process is killed then. Only the last record can be incomplete.
#[derive(Debug)]
pub(crate) struct LogWriter(File);

impl LogWriter {
    /// Creates the file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().create_new(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Appends a record of `thread`.
    pub(crate) fn write(&self, thread: u32, at: u64, event: Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Record { at, thread, event })?;
        line.push(b'\n');
        let written = (&self.0).write(&line)?;
        if written == line.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }
}

/// Reads the records of a process. A last line without an end is left out: the process was killed while it
/// wrote it.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = fs::read(path)?;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let whole = lines.filter(|line| line.ends_with(b"\n"));
    let parse = |line| serde_json::from_slice(line).map_err(io::Error::from);
    whole.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_up_to_a_torn_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = LogWriter::create(&path).unwrap();
        assert_eq!(read(&path).unwrap(), []);
        let events = [
            Event::Asked {
                name: 3,
                wait: 0,
                is_shared: true,
            },
            Event::Granted {
                token: u64::MAX >> 1,
                slot: 2,
            },
            Event::NotGranted { why: Refusal::Busy },
            Event::Held,
            Event::Ended {
                began: 7,
                how: Ending::AlreadyLost,
            },
        ];
        let mut expected = Vec::new();
        for (at, event) in (1..).zip(events) {
            log.write(5, at, event.clone()).unwrap();
            expected.push(Record {
                at,
                thread: 5,
                event,
            });
        }
        assert_eq!(read(&path).unwrap(), expected);
        (&log.0).write_all(b"{\"at\":17,\"thr").unwrap();
        assert_eq!(read(&path).unwrap(), expected);
        (&log.0).write_all(b"\n").unwrap();
        assert!(read(&path).is_err(), "only the last line may be torn");
    }

    #[test]
    fn only_errors_that_a_fault_explains_are_expected() {
        let kind = |kind| Kind::from(&lockkeeper::Error::new(kind, "text"));
        assert!(kind(lockkeeper::ErrorKind::Unavailable).is_expected);
        let refused = kind(lockkeeper::ErrorKind::Incompatible);
        assert!(!refused.is_expected);
        assert!(refused.text.unwrap().contains("text"));
    }
}
