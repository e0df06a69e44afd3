//! Reports of what a keeper does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::name::LockName;
use crate::provider::Released;
use crate::sync::run_caught;
use crate::token::FencingToken;

/// Receives the events of a keeper's locks. Override the methods that are of interest.
///
/// A method is called on the thread on which the event happens (the acquiring or releasing one, or
/// one of the keeper's own), so it should be quick. A panic in it is caught and goes no further.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{FencingToken, LockName, Observer};
///
/// struct LogLosses;
///
/// impl Observer for LogLosses {
///     fn lost(&self, name: &LockName, token: FencingToken) {
///         eprintln!("{name} was lost, token {token}");
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// The lock was granted, `waited` after it was requested; `handed_over` within this process.
    fn acquired(&self, name: &LockName, token: FencingToken, waited: Duration, handed_over: bool) {
        let _ = (name, token, waited, handed_over);
    }

    /// Another holder has the name: a wait begins, or a single attempt ends.
    fn contended(&self, name: &LockName) {
        let _ = name;
    }

    /// The lock was not granted. Without an `error` another holder had it until the end of the wait.
    fn not_acquired(&self, name: &LockName, waited: Duration, error: Option<&Error>) {
        let _ = (name, waited, error);
    }

    /// The store renewed the lease.
    fn renewed(&self, name: &LockName, token: FencingToken) {
        let _ = (name, token);
    }

    /// A renewal has no answer. The deadline stays, and the renewal is repeated while time is left.
    fn renewal_unknown(&self, name: &LockName, token: FencingToken, error: &Error) {
        let _ = (name, token, error);
    }

    /// The guard can no longer prove that it holds the lock.
    fn lost(&self, name: &LockName, token: FencingToken) {
        let _ = (name, token);
    }

    /// A guard was released or dropped. After an error the store's answer is unknown, and the store
    /// frees the name after the ttl.
    ///
    /// If a drop did not wait for the store's answer, a thread of the keeper reports it when it is there.
    fn released(&self, name: &LockName, token: FencingToken, result: &Result<Released, Error>) {
        let _ = (name, token, result);
    }

    /// Opening found something about the store that may break locks; `text` says what it means.
    /// `store` is its URL without secrets.
    fn warning(&self, store: &str, text: &str) {
        let _ = (store, text);
    }

    /// Opening cannot reach the store, and tries again until
    /// [`Config::open_wait`](crate::Config::open_wait) is over. Told once. `store` is its URL without
    /// secrets.
    fn open_waits(&self, store: &str, reason: &Error) {
        let _ = (store, reason);
    }

    /// Opening found the first store unreachable, and the listed fallback is used from now on. Both
    /// are URLs without secrets. If tokens may become smaller on one of the listed stores, a
    /// [`warning`](Self::warning) about that store came before.
    fn fallback(&self, from: &str, to: &str, reason: &Error) {
        let _ = (from, to, reason);
    }
}

/// Calls the observer of a keeper, if there is one, and catches its panics.
#[derive(Clone, Default)]
pub(crate) struct Notifier(Option<Arc<dyn Observer>>);

impl Notifier {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self(observer)
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn notify(&self, event: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.0 {
            run_caught(|| event(observer.as_ref()));
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "observed" } else { "none" })
    }
}
