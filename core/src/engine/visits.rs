//! Background threads borrow the engine: they do not keep it alive, and its end waits for them.

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::sync::{lock, wait};

/// How long the end of a keeper waits for a thread that still works for it.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);

/// Counts the background threads that have the engine right now.
#[derive(Default)]
pub(super) struct Visits {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    count: usize,
}

impl Visits {
    /// Gives the engine to `body`. `None`: the engine has ended, or is about to.
    pub(super) fn visit<E, R>(
        &self,
        engine: &Weak<E>,
        body: impl FnOnce(&Arc<E>) -> R,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        let engine = engine.upgrade()?;
        state.count += 1;
        drop(state);
        let result = body(&engine);
        let mut state = lock(&self.state);
        // With the lock held, so that the engine is gone when `close` sees the count.
        drop(engine);
        state.count -= 1;
        self.left.notify_all();
        Some(result)
    }

    /// Lets no more threads in.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
    }

    /// Waits for the threads that have the engine, so that the store is closed when the last keeper
    /// or guard has gone: what is left to a thread does not happen when the program ends. A store
    /// call that hangs ends by its own deadline.
    pub(super) fn wait(&self) {
        let until = Instant::now() + CLOSE_LIMIT;
        let mut state = lock(&self.state);
        while state.count > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = wait(&self.left, state, Some(left));
        }
    }
}
