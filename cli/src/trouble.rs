//! Why a command could not do what it was asked to, and its exit status; see sysexits.h.

use std::fmt;

use lockkeeper::{Error, ErrorKind};

/// Wrong usage.
pub(crate) const USAGE: u8 = 64;
/// The store is out of reach.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The system could not do what it usually can.
pub(crate) const SYSTEM: u8 = 71;
/// Bad configuration.
pub(crate) const CONFIG: u8 = 78;
/// The lock was lost and the command ended.
pub(crate) const LOST: u8 = 79;

/// Why it could not be done: one line with the cause and the way out, and the exit status.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Trouble {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// The system could not do something.
    pub(crate) fn system(what: &str, error: &dyn fmt::Display) -> Self {
        Self::new(SYSTEM, format!("cannot {what}: {error}"))
    }

    /// An error that comes of what was said on the command line.
    pub(crate) fn usage(error: &Error) -> Self {
        let trouble = Self::from(error.clone());
        match trouble.code {
            CONFIG => Self {
                code: USAGE,
                ..trouble
            },
            _ => trouble,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever a cause of a cause has to say: one line.
        f.write_str(&self.text.lines().collect::<Vec<_>>().join(" "))
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::PoolExhausted => UNAVAILABLE,
            ErrorKind::Lost => LOST,
            _ => CONFIG,
        };
        let mut text = error.to_string();
        // What says "see the cause" is all that is seen of it.
        let first = std::error::Error::source(&error);
        for cause in std::iter::successors(first, |cause| cause.source()) {
            let cause = cause.to_string();
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        Self::new(code, text)
    }
}
