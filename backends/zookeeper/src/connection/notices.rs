//! Whom notices of a server reach.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_utils::sync::{Parker, Unparker};
use lockkeeper_core::{CancelRegistration, CancelToken, LeaseVerifiers};
use parking_lot::Mutex;

/// The callers that wait for changes of nodes, and the keepers whose leases end with sessions.
#[derive(Default)]
pub(crate) struct Notices {
    pub(crate) verifiers: LeaseVerifiers,
    /// The node of all sessions.
    sessions: String,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// By the path of a node.
    signals: HashMap<String, Vec<Arc<Signal>>>,
}

/// Wakes a caller.
struct Signal {
    is_due: AtomicBool,
    unparker: Unparker,
}

impl Signal {
    fn wake(&self) {
        self.is_due.store(true, Ordering::Release);
        self.unparker.unpark();
    }
}

impl Notices {
    pub(crate) fn new(sessions: &str) -> Arc<Self> {
        Arc::new(Self {
            sessions: format!("{sessions}/"),
            ..Self::default()
        })
    }

    /// Registers a caller that waits for a change of the node, until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, path: &str) -> Waiter {
        let parker = Parker::new();
        let signal = Arc::new(Signal {
            is_due: AtomicBool::new(false),
            unparker: parker.unparker().clone(),
        });
        let mut waiting = self.waiting.lock();
        let signals = waiting.signals.entry(path.to_owned()).or_default();
        signals.push(Arc::clone(&signal));
        drop(waiting);
        Waiter {
            path: path.to_owned(),
            parker,
            signal,
            notices: Arc::clone(self),
        }
    }

    /// Notes that a node has changed.
    pub(super) fn changed(&self, path: &str) {
        if path.starts_with(&self.sessions) {
            self.verifiers.verify_all();
        }
        if let Some(signals) = self.waiting.lock().signals.get(path) {
            signals.iter().for_each(|signal| signal.wake());
        }
    }

    /// Notes that no notices come any more.
    pub(super) fn cut(&self) {
        self.verifiers.verify_all();
        let waiting = self.waiting.lock();
        waiting.signals.values().flatten().for_each(|it| it.wake());
    }
}

/// A caller that waits.
pub(crate) struct Waiter {
    path: String,
    parker: Parker,
    signal: Arc<Signal>,
    notices: Arc<Notices>,
}

impl Waiter {
    /// Returns whether the node has changed, or may have.
    pub(crate) fn is_due(&self) -> bool {
        self.signal.is_due.load(Ordering::Acquire)
    }

    pub(crate) fn park(&self, limit: Duration) {
        self.parker.park_timeout(limit);
    }

    /// Lets a cancel end the wait.
    pub(crate) fn wake_on(&self, cancel: Option<&CancelToken>) -> Option<CancelRegistration> {
        let unparker = self.parker.unparker().clone();
        cancel.map(|cancel| cancel.on_cancel(move || unparker.unpark()))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.notices.waiting.lock();
        if let Some(signals) = waiting.signals.get_mut(&self.path) {
            signals.retain(|it| !Arc::ptr_eq(it, &self.signal));
            if signals.is_empty() {
                waiting.signals.remove(&self.path);
            }
        }
    }
}
