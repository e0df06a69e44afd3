//! Makes the keepers of a provider verify their leases as soon as another process notifies it of ended
//! leases.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::connection::Slot;
use super::wake::{Parker, ParkerPool};
use crate::lock;

/// How often the thread checks that there are still leases.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The thread that receives the notifications. It starts with a lock, and ends with the provider or when
/// this process has had no lock for a while.
pub(super) struct LeaseListener {
    /// The process that opened the provider. A forked child has no copy of the thread.
    pid: u32,
    /// Each lease, and each acquisition that is under way, has a clone.
    pub(super) leases: Arc<()>,
    state: Arc<Mutex<State>>,
}

enum State {
    Idle,
    Listening {
        parker: Arc<Parker>,
        thread: JoinHandle<()>,
        /// Whether there was a lock since the last check.
        is_used: bool,
    },
    /// The provider has ended.
    Over,
}

impl LeaseListener {
    pub(super) fn new() -> Self {
        Self {
            pid: std::process::id(),
            leases: Arc::new(()),
            state: Arc::new(Mutex::new(State::Idle)),
        }
    }

    /// Starts the thread if it does not run. Returns whether it ran before.
    ///
    /// Without it, losses are noticed by the next renewal. If it cannot start, the next acquisition tries again:
    /// descriptors or threads may be free by then.
    pub(super) fn start(&self, slot: &Arc<Slot>, parkers: &ParkerPool) -> bool {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Idle => {}
            State::Listening { is_used, .. } => {
                *is_used = true;
                return true;
            }
            State::Over => return false,
        }
        let Some(parker) = parkers.holder().map(Arc::new) else {
            return false;
        };
        let thread = || {
            let (parker, slot) = (Arc::clone(&parker), Arc::downgrade(slot));
            let (leases, state) = (Arc::downgrade(&self.leases), Arc::clone(&self.state));
            let named = thread::Builder::new().name("lockkeeper-sqlite".to_owned());
            let listen = move || {
                while wait(&parker, &leases, &state) {
                    verify(&slot);
                }
                if !parker.exists() {
                    // The database may have been deleted, too, and no notification of a new one arrived.
                    verify(&slot);
                }
            };
            named.spawn(listen).ok()
        };
        if let Some(thread) = thread() {
            *state = State::Listening {
                parker,
                thread,
                is_used: true,
            };
        }
        false
    }
}

/// Waits for a notification. Returns false when the thread is not needed any more.
fn wait(parker: &Parker, leases: &Weak<()>, state: &Mutex<State>) -> bool {
    loop {
        parker.wait(&[], CHECK_INTERVAL);
        let is_notified = parker.clear();
        let mut state = lock(state);
        let State::Listening { is_used, .. } = &mut *state else {
            return false;
        };
        // One reference is the listener's own. Another program may have deleted the socket; then the
        // next lock starts another thread.
        let has_leases = std::mem::take(is_used) || leases.strong_count() > 1;
        if !has_leases || !parker.exists() {
            *state = State::Idle;
            return false;
        }
        if is_notified {
            return true;
        }
    }
}

fn verify(slot: &Weak<Slot>) {
    if let Some(slot) = slot.upgrade() {
        slot.check_files();
        slot.verifiers.verify_all();
    }
}

impl Drop for LeaseListener {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        let ended = std::mem::replace(&mut *lock(&self.state), State::Over);
        if let State::Listening { parker, thread, .. } = ended {
            parker.unpark();
            // The last keeper may have ended on the thread itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for LeaseListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseListener").finish_non_exhaustive()
    }
}
