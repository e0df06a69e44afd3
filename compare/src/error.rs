//! Why a comparison failed.

use std::fmt;

use lockkeeper::ErrorKind;
use lockkeeper::backends::postgres::PlainError;

/// Why a comparison failed. The texts are one line: the cause, and what to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The caller cancelled the comparison.
    Interrupted,
    /// The comparison's settings cannot be used.
    Invalid(String),
    /// The application's connection pool had no connection for a request.
    PoolExhausted(String),
    /// A store or the machine failed.
    Failed(String),
}

impl Error {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }

    /// Prefixes the text with what failed.
    pub(crate) fn about(mut self, what: &str) -> Self {
        if let Self::Invalid(text) | Self::PoolExhausted(text) | Self::Failed(text) = &mut self {
            *text = format!("{what}: {text}");
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupted => "interrupted; the report shows what was measured until then",
            Self::Invalid(text) | Self::PoolExhausted(text) | Self::Failed(text) => text,
        })
    }
}

impl std::error::Error for Error {}

impl From<lockkeeper::Error> for Error {
    fn from(error: lockkeeper::Error) -> Self {
        match error.kind() {
            ErrorKind::Cancelled => Self::Interrupted,
            ErrorKind::InvalidUrl
            | ErrorKind::UnknownScheme
            | ErrorKind::FeatureDisabled
            | ErrorKind::UnknownKey
            | ErrorKind::InvalidValue
            | ErrorKind::InvalidTtl
            | ErrorKind::TtlTooShort
            | ErrorKind::InvalidWait
            | ErrorKind::InvalidName
            | ErrorKind::Unsupported => Self::invalid(error.to_string()),
            _ => Self::failed(error.to_string()),
        }
    }
}

impl From<r2d2::Error> for Error {
    fn from(error: r2d2::Error) -> Self {
        Self::PoolExhausted(format!("no connection of the pool was free: {error}"))
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::failed(format!(
            "the scenario's data could not be kept in its throw-away SQLite file: {error}; \
             is there room in the folder for temporary files (TMPDIR)?"
        ))
    }
}

impl From<mysql::Error> for Error {
    fn from(error: mysql::Error) -> Self {
        Self::failed(format!(
            "MySQL or MariaDB failed: {error}; does it run, may this user CREATE and DROP tables \
             in the URL's database, and does it take some more connections than there are threads?"
        ))
    }
}

impl From<PlainError> for Error {
    fn from(error: PlainError) -> Self {
        let error = match &error {
            PlainError::LockTimeout => "a statement waited too long for a lock".to_owned(),
            PlainError::Failed(error) => error.to_string(),
        };
        Self::failed(format!(
            "PostgreSQL failed: {error}; does it run, may this user CREATE and DROP tables in the \
             URL's database, and does it take some more connections than there are threads?"
        ))
    }
}

impl From<redis::RedisError> for Error {
    fn from(error: redis::RedisError) -> Self {
        Self::failed(format!(
            "Redis failed: {error}; does it run, and may this user run GET, SET, DEL, RPUSH, LLEN, \
             EXPIRE, MULTI, EVAL, INCR, DECR and INFO?"
        ))
    }
}
