//! Being told what a keeper does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::name::LockName;
use crate::provider::Released;
use crate::sync::run_caught;
use crate::token::FencingToken;

/// Hears of everything that happens to a keeper's locks; override what is of interest.
///
/// Called on the thread on which it happens (the acquiring or releasing one, or one of the
/// keeper's own), so it should be quick. A panic in it is caught and goes no further.
pub trait Observer: Send + Sync + 'static {
    /// Granted, `waited` after it was asked for; `handed_over` within this process.
    fn acquired(&self, name: &LockName, token: FencingToken, waited: Duration, handed_over: bool) {
        let _ = (name, token, waited, handed_over);
    }

    /// Another holder has the name: a wait begins, or a single attempt ends.
    fn contended(&self, name: &LockName) {
        let _ = name;
    }

    /// Not granted: `None` when it was busy until the end of the wait.
    fn not_acquired(&self, name: &LockName, waited: Duration, error: Option<&Error>) {
        let _ = (name, waited, error);
    }

    /// The store renewed the lease.
    fn renewed(&self, name: &LockName, token: FencingToken) {
        let _ = (name, token);
    }

    /// A renewal has no answer; the deadline stays, and it is tried again while time is left.
    fn renewal_unknown(&self, name: &LockName, token: FencingToken, error: &Error) {
        let _ = (name, token, error);
    }

    /// The guard can no longer prove that it holds.
    fn lost(&self, name: &LockName, token: FencingToken) {
        let _ = (name, token);
    }

    /// A guard was released or dropped; an error means that the store's answer is unknown, and
    /// that it frees the name after the ttl.
    fn released(&self, name: &LockName, token: FencingToken, result: &Result<Released, Error>) {
        let _ = (name, token, result);
    }

    /// Something about the store may break locks that work now; told at opening, in words that say
    /// what it means. `store` is named without its secrets.
    fn warning(&self, store: &str, text: &str) {
        let _ = (store, text);
    }

    /// The first store was unreachable at opening, and the listed fallback is used from now on. Both are
    /// named without their secrets.
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

    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Observer)) {
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
