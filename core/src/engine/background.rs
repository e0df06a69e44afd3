//! Background threads use the engine without keeping it alive, and its end waits for them.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::sync::lock;

use super::Engine;

/// The background threads that use the engine now. Each has a sender of a channel that carries nothing, and the
/// receiver notices when the last sender is dropped. `None` after the end.
pub(super) struct BackgroundUse(Mutex<Option<(Sender<Infallible>, Receiver<Infallible>)>>);

impl BackgroundUse {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(channel())))
    }

    /// Calls `body` with the engine. `None` if the engine has ended, or is about to.
    pub(super) fn with<E, R>(
        &self,
        engine: &Weak<E>,
        body: impl FnOnce(&Arc<E>) -> R,
    ) -> Option<R> {
        let _use = self.begin()?;
        let engine = engine.upgrade()?;
        Some(body(&engine))
    }

    /// Makes [`end`](Self::end) wait until the result is dropped. Drop the engine before it, so that the
    /// engine is gone then. `None` after the end.
    pub(super) fn begin(&self) -> Option<Sender<Infallible>> {
        Some(lock(&self.0).as_ref()?.0.clone())
    }

    /// Lets no thread begin to use the engine, and waits for those that do, at most for `limit`. The store is closed
    /// when the last keeper or guard has gone, since nothing else may follow before the program ends. A store call
    /// that hangs ends by its own deadline.
    pub(super) fn end(&self, limit: Duration) {
        let Some((sender, receiver)) = lock(&self.0).take() else {
            return;
        };
        drop(sender);
        // An error either way: all senders are gone, or the time is over.
        let _ = receiver.recv_timeout(limit);
    }
}

/// The engine as a job uses it that is done also after the keeper's end.
pub(super) struct LastingUse {
    // Dropped first: see `BackgroundUse::begin`.
    pub(super) engine: Arc<Engine>,
    _in_use: Option<Sender<Infallible>>,
}

impl Engine {
    pub(super) fn lasting_use(self: &Arc<Self>) -> LastingUse {
        LastingUse {
            engine: Arc::clone(self),
            _in_use: self.background.begin(),
        }
    }
}
