//! One error type for every backend: what kind, whether trying again can help, which lock, which
//! store, and the cause underneath.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::name::LockName;

/// What went wrong. Match on it; the text is for people.
///
/// Busy, out of reach and unknown are three different outcomes, and none is ever reported as
/// another: busy is `Ok(None)` or [`TimedOut`](ErrorKind::TimedOut).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The URL cannot be parsed, or has a part that this scheme does not use.
    InvalidUrl,
    /// No backend answers to this scheme.
    UnknownScheme,
    /// The scheme is known, but its feature was not compiled in.
    FeatureDisabled,
    /// An unknown parameter, variable or config key; the text names the nearest known one.
    UnknownKey,
    /// A known key with a value that it does not take.
    InvalidValue,
    /// A ttl that is zero, not a duration, or longer than can be represented.
    InvalidTtl,
    /// A ttl under the smallest that works on this store.
    TtlTooShort,
    /// A wait that is not a duration, or longer than can be represented.
    InvalidWait,
    /// A lock name (or namespace) outside of 1 to 512 bytes.
    InvalidName,
    /// A promise was required that this store cannot keep.
    Unsupported,
    /// Another holder had the lock until the wait was over.
    TimedOut,
    /// The acquisition was woken by its [`CancelToken`](crate::CancelToken).
    Cancelled,
    /// The store is out of reach, or cannot serve now: nothing was granted.
    Unavailable,
    /// The store was asked, and its reply never came. The engine has asked again under the same
    /// owner while time was left; what the store may have granted expires with its ttl.
    Unknown,
    /// The guard can no longer prove that it holds.
    Lost,
    /// Every connection of the pool is in use.
    PoolExhausted,
    /// The store found that holders wait for each other in a circle, and ended this wait: nothing
    /// was granted. Release what you hold before you try again, and take names in one order.
    Deadlock,
    /// The store answers, but refuses: permissions, a read-only file.
    PermissionDenied,
    /// The store is there, but is not what the backend can work with: a file that is no database,
    /// a schema from a newer version, an answer that makes no sense.
    Incompatible,
}

impl ErrorKind {
    /// Returns whether the same call can succeed later although nothing is changed.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::TimedOut
                | Self::Unavailable
                | Self::Unknown
                | Self::PoolExhausted
                | Self::Deadlock
        )
    }
}

/// What every fallible call of this project returns.
///
/// [`Display`](fmt::Display) is one line for people: what failed, on which lock and store.
/// [`Debug`] adds the kind and the chain of causes. Neither ever shows a secret. Cloning is cheap.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    name: Option<LockName>,
    backend: Option<&'static str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    unreachable: bool,
}

impl Error {
    /// An error of `kind`; `message` says what happened and what to do about it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                message: message.into(),
                name: None,
                backend: None,
                source: None,
                unreachable: false,
            }),
        }
    }

    /// [`ErrorKind::Unavailable`] because the store did not answer. A store that can be reached may still be
    /// unavailable, and others may lock on it meanwhile (all its connections are taken, say): that
    /// is [`new`](Self::new)'s, and opens no fallback.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message).edit(|inner| inner.unreachable = true)
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Names the lock, unless one is named already.
    #[must_use]
    pub fn with_name(self, name: &LockName) -> Self {
        self.edit(|inner| {
            inner.name.get_or_insert_with(|| name.clone());
        })
    }

    /// Names the store, unless one is named already.
    #[must_use]
    pub fn with_backend(self, backend: &'static str) -> Self {
        self.edit(|inner| {
            inner.backend.get_or_insert(backend);
        })
    }

    /// Keeps the cause; [`StdError::source`] gives it back.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.edit(|inner| inner.source = Some(Arc::new(source)))
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns whether the same call can succeed later although nothing is changed.
    pub fn is_retryable(&self) -> bool {
        self.inner.kind.is_retryable()
    }

    /// Returns whether the store did not answer; only such an error lets a listed fallback be opened.
    pub fn is_unreachable(&self) -> bool {
        self.inner.unreachable
    }

    /// The lock that it was about, if it was about one.
    pub fn name(&self) -> Option<&LockName> {
        self.inner.name.as_ref()
    }

    /// The store that it came from, such as `"sqlite"`; `None` where no store was involved.
    pub fn backend(&self) -> Option<&'static str> {
        self.inner.backend
    }

    /// The text without lock and store.
    pub fn message(&self) -> &str {
        &self.inner.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        match (&self.inner.name, self.inner.backend) {
            (Some(name), Some(backend)) => write!(f, " (lock {name:?} on {backend})"),
            (Some(name), None) => write!(f, " (lock {name:?})"),
            (None, Some(backend)) => write!(f, " ({backend})"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, "\n  caused by: {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_to_show_long_to_debug_and_the_cause_is_kept() {
        let name = LockName::new("seat:42").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "the store does not answer")
            .with_source(std::io::Error::other("connection refused"))
            .with_name(&name)
            .with_backend("redis");
        assert_eq!(
            error.to_string(),
            "the store does not answer (lock \"seat:42\" on redis)"
        );
        assert_eq!(
            format!("{error:?}"),
            "Unavailable: the store does not answer (lock \"seat:42\" on redis)\n  caused by: connection refused"
        );
        assert!(error.is_retryable());
        assert_eq!(error.source().unwrap().to_string(), "connection refused");
    }

    #[test]
    fn the_first_name_and_backend_stay() {
        let (a, b) = (LockName::new("a").unwrap(), LockName::new("b").unwrap());
        let error = Error::new(ErrorKind::Lost, "gone")
            .with_name(&a)
            .with_name(&b)
            .with_backend("memory")
            .with_backend("sqlite");
        assert_eq!(error.name(), Some(&a));
        assert_eq!(error.backend(), Some("memory"));
    }
}
