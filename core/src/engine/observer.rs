//! The trait by which a keeper reports its events.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::provider::Released;
use crate::error::Error;
use crate::mode::Mode;
use crate::name::LockName;
use crate::sync::run_caught;
use crate::token::FencingToken;

/// The lock that an event is about.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ObservedLock<'a> {
    /// The name as it was requested.
    pub name: &'a LockName,
    /// The mode in which it was requested.
    pub mode: Mode,
    /// The URL of the store and the namespace, without secrets:
    /// [`LockKeeper::location`](crate::LockKeeper::location).
    pub store: &'a str,
}

/// Receives the events of a keeper's locks. Override the methods that you need.
///
/// A method is called on the thread on which the event happens: the acquiring or releasing thread, or a
/// thread of the keeper. So it should be quick. A panic in it is caught.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{FencingToken, ObservedLock, Observer};
///
/// struct LogLosses;
///
/// impl Observer for LogLosses {
///     fn lost(&self, lock: &ObservedLock<'_>, token: FencingToken) {
///         eprintln!("{} was lost, token {token}", lock.name);
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// An acquisition begins. [`acquired`](Self::acquired) or [`not_acquired`](Self::not_acquired)
    /// follows on the same thread, and acquisitions that begin between the two end between them.
    ///
    /// An acquisition with an option out of bounds is not reported. If
    /// [`lock_all`](crate::LockKeeper::lock_all) requests several names together, their acquisitions
    /// begin when the store has answered, and end at once.
    fn requested(&self, lock: &ObservedLock<'_>) {
        let _ = lock;
    }

    /// The lock was granted, `waited` after it was requested. With `handed_over`, another thread of this
    /// process had the lease before.
    fn acquired(
        &self,
        lock: &ObservedLock<'_>,
        token: FencingToken,
        waited: Duration,
        handed_over: bool,
    ) {
        let _ = (lock, token, waited, handed_over);
    }

    /// Another holder has the name, so a wait begins or a single attempt ends. It is reported once for each
    /// acquisition.
    fn contended(&self, lock: &ObservedLock<'_>) {
        let _ = lock;
    }

    /// The lock was not granted. Without an `error` another holder had it until the end of the wait.
    fn not_acquired(&self, lock: &ObservedLock<'_>, waited: Duration, error: Option<&Error>) {
        let _ = (lock, waited, error);
    }

    /// The store renewed the lease.
    fn renewed(&self, lock: &ObservedLock<'_>, token: FencingToken) {
        let _ = (lock, token);
    }

    /// A renewal has no answer. The deadline stays, and the renewal is repeated while time is left.
    fn renewal_unknown(&self, lock: &ObservedLock<'_>, token: FencingToken, error: &Error) {
        let _ = (lock, token, error);
    }

    /// The guard can no longer prove that it holds the lock. [`released`](Self::released) follows when the
    /// guard ends.
    fn lost(&self, lock: &ObservedLock<'_>, token: FencingToken) {
        let _ = (lock, token);
    }

    /// A guard was released or dropped, `held` after [`acquired`](Self::acquired). After an error the
    /// store's answer is unknown, and the store frees the name after the ttl.
    ///
    /// If a drop did not wait for the store's answer, a thread of the keeper reports the answer when it
    /// arrives. The time until then does not count as `held`.
    fn released(
        &self,
        lock: &ObservedLock<'_>,
        token: FencingToken,
        held: Duration,
        result: &Result<Released, Error>,
    ) {
        let _ = (lock, token, held, result);
    }

    /// A request to the store failed, because the store cannot be reached or did not answer. It is reported once,
    /// until the store answers again. A store of several servers has to answer on all of them. `store` is its URL
    /// without secrets.
    ///
    /// A late reply alone is no outage. A keeper that holds nothing sends no requests: then the outage ends with
    /// the reply to its next request.
    ///
    /// A thread of the keeper calls this, so that no acquisition and no renewal waits for the observer.
    fn outage_began(&self, store: &str, reason: &Error) {
        let _ = (store, reason);
    }

    /// The store answers again, or the keeper ended. `lasted` is the time since the first failed request was made.
    /// A thread of the keeper, or the thread that drops the keeper, calls this after
    /// [`outage_began`](Self::outage_began).
    fn outage_ended(&self, store: &str, lasted: Duration) {
        let _ = (store, lasted);
    }

    /// Opening found something about the store that may break locks; `text` says what it means.
    /// `store` is its URL without secrets.
    fn warning(&self, store: &str, text: &str) {
        let _ = (store, text);
    }

    /// Opening cannot reach the store, and tries again until
    /// [`Config::open_wait`](crate::Config::open_wait) is over. It is reported once. `store` is its
    /// URL without secrets.
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

/// Calls the observers of a keeper, in the order in which they were added, and catches their panics.
#[derive(Clone, Default)]
pub(crate) struct Notifier(Vec<Arc<dyn Observer>>);

impl Notifier {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observer>) {
        self.0.push(observer);
    }

    pub(crate) fn is_observed(&self) -> bool {
        !self.0.is_empty()
    }

    pub(crate) fn notify(&self, event: impl Fn(&dyn Observer)) {
        for observer in &self.0 {
            run_caught(|| event(observer.as_ref()));
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}
