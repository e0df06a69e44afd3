//! Whom notices of a server reach.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use lockkeeper_core::{CancelToken, LeaseVerifiers};
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
    /// What wakes the callers, each with the caller's number, by the path of a node.
    callers: HashMap<String, Vec<(u64, Sender<()>)>>,
    last_number: u64,
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
        let (wake, woken) = mpsc::channel();
        let mut waiting = self.waiting.lock();
        waiting.last_number += 1;
        let number = waiting.last_number;
        let callers = waiting.callers.entry(path.to_owned()).or_default();
        callers.push((number, wake.clone()));
        drop(waiting);
        Waiter {
            path: path.to_owned(),
            number,
            wake,
            woken,
            notices: Arc::clone(self),
        }
    }

    /// Notes that a node has changed. That of a session is written to keep the session, and only its end is a reason to
    /// verify leases, which keeps it again.
    pub(super) fn changed(&self, path: &str, is_deleted: bool) {
        if is_deleted && path.starts_with(&self.sessions) {
            self.verifiers.verify_all();
        }
        if let Some(callers) = self.waiting.lock().callers.get(path) {
            wake_all(callers);
        }
    }

    /// Notes that no notices come any more.
    pub(super) fn cut(&self) {
        self.verifiers.verify_all();
        let waiting = self.waiting.lock();
        waiting.callers.values().for_each(|it| wake_all(it));
    }
}

fn wake_all(callers: &[(u64, Sender<()>)]) {
    for (_, wake) in callers {
        // A caller that has gone is about to leave the list.
        let _ = wake.send(());
    }
}

/// A caller that waits.
pub(crate) struct Waiter {
    path: String,
    number: u64,
    wake: Sender<()>,
    woken: Receiver<()>,
    notices: Arc<Notices>,
}

impl Waiter {
    /// Waits within `limit` until the node may have changed since [`enter`](Notices::enter), or for a cancel.
    pub(crate) fn wait(&self, limit: Duration, cancel: Option<&CancelToken>) {
        let wake = self.wake.clone();
        let _registered = cancel.map(|cancel| {
            cancel.on_cancel(move || {
                let _ = wake.send(());
            })
        });
        // After the time-out, nothing has changed.
        let _ = self.woken.recv_timeout(limit);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.notices.waiting.lock();
        if let Some(callers) = waiting.callers.get_mut(&self.path) {
            callers.retain(|(number, _)| *number != self.number);
            if callers.is_empty() {
                waiting.callers.remove(&self.path);
            }
        }
    }
}
