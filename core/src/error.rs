//! One error type for every backend: its kind, the lock, the store and the cause.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::name::LockName;

/// The most names of a set that an error shows.
const MOST_NAMES: usize = 8;

/// The kind of an [`Error`]. Programs match on the kind; the text is for people.
///
/// Busy, unavailable and unknown are three different outcomes, and none is ever reported as
/// another. Busy is `Ok(None)` or [`TimedOut`](ErrorKind::TimedOut).
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
    /// A limit of a semaphore outside of 1 to [`MAX_PERMITS`](crate::MAX_PERMITS).
    InvalidLimit,
    /// A permit was requested while permits of the same name are held with another limit. Nothing was
    /// granted. All programs have to use the same limit.
    LimitMismatch,
    /// A promise was required that this store cannot keep.
    Unsupported,
    /// Another holder had the lock until the wait was over.
    ///
    /// Two threads or processes that lock two names in opposite orders wait for each other until then;
    /// see [`LockKeeper::lock`](crate::LockKeeper::lock).
    TimedOut,
    /// The acquisition was ended by its [`CancelToken`](crate::CancelToken), or by
    /// [`LockKeeper::close`](crate::LockKeeper::close).
    Cancelled,
    /// The store cannot be reached, or cannot serve now: nothing was granted.
    Unavailable,
    /// A request got no reply. The engine has asked again under the same owner while time was left.
    /// What the store may have granted expires with its ttl.
    Unknown,
    /// The guard can no longer prove that it holds the lock.
    Lost,
    /// Every connection of the pool is in use.
    PoolExhausted,
    /// The store found that holders wait for each other in a circle, and ended this wait. Nothing was
    /// granted. The same call would fail again: release your locks first, and lock names in the same
    /// order everywhere.
    ///
    /// [`ReentrantKeeper`](crate::ReentrantKeeper) reports it for a thread that holds a lock shared and wants it
    /// exclusively. Of the stores, only MySQL and MariaDB can report it, for a session that waits and holds
    /// names itself. Keepers wait on sessions that hold nothing, so almost every circle of several holders ends
    /// with [`TimedOut`](ErrorKind::TimedOut) instead.
    Deadlock,
    /// The store answers, but refuses: permissions, a read-only file.
    PermissionDenied,
    /// The backend cannot work with this store, such as a file that is no database, or a schema from a newer
    /// version.
    Incompatible,
}

impl ErrorKind {
    /// Returns whether the same call can succeed later without any change.
    ///
    /// False for [`Deadlock`](ErrorKind::Deadlock): the caller has to release its locks first.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::TimedOut | Self::Unavailable | Self::Unknown | Self::PoolExhausted
        )
    }
}

/// The error of every fallible call of lockkeeper.
///
/// [`Display`](fmt::Display) is one line for people: what failed, on which lock and store.
/// [`source`](StdError::source) returns the cause, which is not in that line, and [`Debug`] shows the whole
/// chain. Neither shows a secret, or a character that moves a terminal's cursor or reverses its lines. Cloning
/// is cheap.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, ErrorKind};
///
/// fn advice(error: &Error) -> &'static str {
///     match error.kind() {
///         ErrorKind::Lost => "roll back",
///         _ if error.is_retryable() => "try again later",
///         _ => "change a setting first",
///     }
/// }
///
/// let error = Error::new(ErrorKind::TimedOut, "another holder had the lock");
/// assert_eq!(advice(&error), "try again later");
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    name: Option<Arc<str>>,
    backend: Option<&'static str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    reason: Reason,
}

/// What more is known of an [`ErrorKind::Unavailable`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Nothing; and of an error of any other kind.
    Other,
    /// See [`Error::unreachable`].
    Unreachable,
    /// See [`Error::name_unavailable`].
    OfName,
    /// See [`Error::not_sent`].
    NotSent,
    /// See [`Error::epoch_too_small`].
    EpochTooSmall(u64),
}

impl Error {
    /// Makes an error of `kind`. `message` says what happened and what to do.
    ///
    /// Control characters of the message are escaped, as in `\u{1b}`, since it may contain a server's text.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                message: visible(message.into()),
                name: None,
                backend: None,
                source: None,
                reason: Reason::Other,
            }),
        }
    }

    /// Makes an [`ErrorKind::Unavailable`] for a store that did not answer. Only after this error,
    /// opening uses a listed fallback.
    ///
    /// If the store answers but cannot serve, such as when all its connections are in use, other
    /// programs may lock on it. Use [`new`](Self::new) for that.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message).for_reason(Reason::Unreachable)
    }

    /// Makes an [`ErrorKind::Unavailable`] for a store that replied that it cannot serve this name for now. That is
    /// no outage. The acquisition asks again after a short pause, until its wait or the limit of a single attempt
    /// is over. Acquisitions of other names continue meanwhile.
    pub fn name_unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message).for_reason(Reason::OfName)
    }

    /// Makes an [`ErrorKind::Unavailable`] for a request that was not sent, since its deadline had passed. That says
    /// nothing of the store.
    pub fn not_sent(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message).for_reason(Reason::NotSent)
    }

    /// Makes an [`ErrorKind::Unavailable`] for a [proposed epoch](crate::AcquireRequest::proposed_epoch) that
    /// is not larger than `last`, the largest epoch that the store refuses. Nothing was granted.
    pub fn epoch_too_small(proposed: u64, last: u64) -> Self {
        let text = format!(
            "the epoch {proposed} was proposed, and the store has granted {last}; propose a larger one"
        );
        Self::new(ErrorKind::Unavailable, text).for_reason(Reason::EpochTooSmall(last))
    }

    fn for_reason(self, reason: Reason) -> Self {
        self.edit(|inner| inner.reason = reason)
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Names the lock, unless one is named already.
    #[must_use]
    pub fn with_name(self, name: impl AsRef<str>) -> Self {
        self.edit(|inner| {
            inner.name.get_or_insert_with(|| name.as_ref().into());
        })
    }

    /// Names the locks of a set: the only one as [`with_name`](Self::with_name) does, several in the text.
    pub(crate) fn with_names<'a>(self, names: impl Iterator<Item = &'a LockName>) -> Self {
        let names: Vec<_> = names.collect();
        if let [name] = *names {
            return self.with_name(name);
        }
        self.edit(|inner| {
            let (shown, more) = names.split_at(names.len().min(MOST_NAMES));
            let shown: Vec<_> = shown.iter().map(|name| format!("{name:?}")).collect();
            let more = match more.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            inner.message = format!(
                "{}, for the locks {}{more}",
                inner.message,
                shown.join(", ")
            );
        })
    }

    /// Names the store, unless one is named already.
    #[must_use]
    pub fn with_backend(self, backend: &'static str) -> Self {
        self.edit(|inner| {
            inner.backend.get_or_insert(backend);
        })
    }

    /// Changes the kind, for an operation in which the failure of a request has another meaning.
    #[must_use]
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        self.edit(|inner| {
            inner.kind = kind;
            if kind != ErrorKind::Unavailable {
                inner.reason = Reason::Other;
            }
        })
    }

    /// Adds the cause, which [`source`](StdError::source) returns. Do not repeat it in the message.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.edit(|inner| inner.source = Some(Arc::new(source)))
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns whether the same call can succeed later without any change:
    /// [`ErrorKind::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.inner.kind.is_retryable()
    }

    /// Returns whether the store did not answer. Only after such an error, opening uses a listed fallback.
    pub fn is_unreachable(&self) -> bool {
        self.inner.reason == Reason::Unreachable
    }

    /// Returns whether the store replied that it cannot serve this name for now: see
    /// [`name_unavailable`](Self::name_unavailable).
    pub fn is_of_name(&self) -> bool {
        self.inner.reason == Reason::OfName
    }

    /// Returns whether the request was not sent: see [`not_sent`](Self::not_sent).
    pub fn is_not_sent(&self) -> bool {
        self.inner.reason == Reason::NotSent
    }

    /// Returns the largest epoch that the store refuses, if it refused a proposed one: see
    /// [`epoch_too_small`](Self::epoch_too_small).
    pub fn last_epoch(&self) -> Option<u64> {
        match self.inner.reason {
            Reason::EpochTooSmall(last) => Some(last),
            _ => None,
        }
    }

    /// Returns the name of the lock; `None` if the error is not about one lock.
    pub fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    /// Returns the store's short name, such as `"sqlite"`; `None` if no store was involved.
    pub fn backend(&self) -> Option<&'static str> {
        self.inner.backend
    }

    /// Returns the text without lock and store.
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
            write!(f, "\n  caused by: {}", visible(error.to_string()))?;
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

/// Escapes the characters of a text that are not shown, but move a terminal's cursor, set its title or reverse its lines.
pub(crate) fn visible(text: String) -> String {
    let is_hidden = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_hidden) {
        return text;
    }
    let mut visible = String::with_capacity(2 * text.len());
    for letter in text.chars() {
        match is_hidden(letter) {
            true => visible.extend(letter.escape_default()),
            false => visible.push(letter),
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_server_cannot_control_the_terminal() {
        let said = "a \u{1b}]0;title\u{7} b\nc \u{9b}2J \u{202e}cba\u{2069} 자리 \"d\\e\"";
        let shown = r#"a \u{1b}]0;title\u{7} b\nc \u{9b}2J \u{202e}cba\u{2069} 자리 "d\e""#;
        let error = Error::new(ErrorKind::Unavailable, said);
        assert_eq!(error.to_string(), shown);
        let error =
            Error::new(ErrorKind::Unavailable, "no").with_source(std::io::Error::other(said));
        assert_eq!(
            format!("{error:?}"),
            format!("Unavailable: no\n  caused by: {shown}")
        );
        let finding = crate::Finding::warning("version", said, said, "");
        assert_eq!((&*finding.what, &*finding.meaning), (shown, shown));
    }

    #[test]
    fn display_is_one_line_and_debug_shows_each_cause_once() {
        let error = Error::new(ErrorKind::Unavailable, "the store does not answer")
            .with_source(std::io::Error::other("connection refused"))
            .with_name("seat:42")
            .with_name("another")
            .with_backend("redis")
            .with_backend("sqlite");
        let line = "the store does not answer (lock \"seat:42\" on redis)";
        assert_eq!(error.to_string(), line);
        assert_eq!(
            format!("{error:?}"),
            format!("Unavailable: {line}\n  caused by: connection refused")
        );
        assert_eq!(
            (error.name(), error.backend()),
            (Some("seat:42"), Some("redis"))
        );
        assert!(error.is_retryable());
        let error = error.with_kind(ErrorKind::Deadlock);
        assert!(!error.is_retryable(), "the caller has to release first");
    }

    #[test]
    fn only_an_unavailable_store_is_unreachable() {
        let error = Error::unreachable("no answer");
        assert!(
            error
                .clone()
                .with_kind(ErrorKind::Unavailable)
                .is_unreachable()
        );
        let error = error.with_kind(ErrorKind::Unknown);
        assert!(!error.is_unreachable() && error.kind() == ErrorKind::Unknown);
    }
}
