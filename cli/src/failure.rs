//! The error of every command, with its exit status; see sysexits.h.

use std::fmt;

use lockkeeper::{Error, ErrorKind};

use crate::who::plain;

/// The command line is wrong.
pub(crate) const USAGE: u8 = 64;
/// The store is out of reach.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The system refused something.
pub(crate) const SYSTEM: u8 = 71;
/// The configuration is wrong.
pub(crate) const CONFIG: u8 = 78;
/// The time of `--timeout` was over, and the command was ended; see timeout(1).
pub(crate) const TIMED_OUT: u8 = 124;
/// The lock was lost and the command ended.
pub(crate) const LOST: u8 = 79;

/// Why a command failed: one line with the cause and what to do, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// Reports that the system refused something.
    pub(crate) fn system(what: &str, error: &dyn fmt::Display) -> Self {
        Self::new(SYSTEM, format!("cannot {what}: {error}"))
    }

    /// Converts an error that is caused by the command line, which is then to blame rather than the
    /// configuration.
    pub(crate) fn usage(error: Error) -> Self {
        let mut failure = Self::from(error);
        if failure.code == CONFIG {
            failure.code = USAGE;
        }
        failure
    }

    /// Converts the error of an acquisition. What its options say is from the command line.
    pub(crate) fn acquisition(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidTtl | ErrorKind::TtlTooShort | ErrorKind::InvalidWait => {
                Self::usage(error)
            }
            _ => error.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A cause may have several lines.
        f.write_str(&self.text.lines().collect::<Vec<_>>().join(" "))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::PoolExhausted => UNAVAILABLE,
            ErrorKind::Lost => LOST,
            _ => CONFIG,
        };
        let mut text = error.to_string();
        // Nothing shows the causes but this text.
        let first = std::error::Error::source(&error);
        for cause in std::iter::successors(first, |cause| cause.source()) {
            let cause = cause.to_string();
            let cause = plain(&cause.lines().collect::<Vec<_>>().join(" "));
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        Self::new(code, text)
    }
}
