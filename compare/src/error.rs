//! Why a run ended early.

use std::fmt;

use lockkeeper::{Error, ErrorKind};

/// Why a run ended early. The texts are one line: the cause, and the way out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Ctrl-C.
    Interrupted,
    /// What was asked for cannot be done.
    Usage(String),
    /// The application's pool had no connection for a request.
    Starved(String),
    /// A store or the machine could not do it.
    Failed(String),
}

impl Failure {
    /// Says before the text what it was about.
    pub(crate) fn about(self, what: &str) -> Self {
        match self {
            Failure::Interrupted => Failure::Interrupted,
            Failure::Usage(text) => Failure::Usage(format!("{what}: {text}")),
            Failure::Starved(text) => Failure::Starved(format!("{what}: {text}")),
            Failure::Failed(text) => Failure::Failed(format!("{what}: {text}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Interrupted => {
                f.write_str("interrupted; what is shown was measured until then")
            }
            Failure::Usage(text) | Failure::Starved(text) | Failure::Failed(text) => {
                f.write_str(text)
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Cancelled => Failure::Interrupted,
            ErrorKind::InvalidUrl
            | ErrorKind::UnknownScheme
            | ErrorKind::FeatureDisabled
            | ErrorKind::UnknownKey
            | ErrorKind::InvalidValue
            | ErrorKind::InvalidTtl
            | ErrorKind::TtlTooShort
            | ErrorKind::InvalidWait
            | ErrorKind::InvalidName
            | ErrorKind::Unsupported => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Failed(format!(
            "the scenario's data could not be kept in its throw-away SQLite file: {error}; \
             is there room in the folder for temporary files (TMPDIR)?"
        ))
    }
}

impl From<mysql::Error> for Failure {
    fn from(error: mysql::Error) -> Self {
        Failure::Failed(format!(
            "MySQL or MariaDB did not do what the comparison asked: {error}; does it run, may this \
             user CREATE and DROP tables in the URL's database, and does it take some \
             more connections than there are --threads?"
        ))
    }
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        Failure::Failed(format!(
            "Redis did not do what the comparison asked: {error}; does it run, and may this user run \
             GET, SET, DEL, RPUSH, LLEN, EXPIRE, MULTI, EVAL and INFO?"
        ))
    }
}

impl std::error::Error for Failure {}
