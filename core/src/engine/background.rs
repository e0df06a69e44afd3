//! Background threads, and their jobs. They use the engine without keeping it alive, and its end waits for them.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::sync::lock;

use super::{Engine, Job, JobKind};

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

    /// Starts the thread that watches deadlines, once. It uses the engine only while it polls: the
    /// engine ends with its last keeper and guard, and the thread with the engine.
    pub(super) fn start_timer(self: &Arc<Self>) -> Result<(), Error> {
        if self.is_started.load(Ordering::Acquire) {
            return Ok(());
        }
        let (weak, background) = (Arc::downgrade(self), Arc::clone(&self.background));
        self.timer.start("lockkeeper-watch", move |tick| {
            background.with(&weak, |engine| engine.poll(tick))
        })?;
        self.is_started.store(true, Ordering::Release);
        Ok(())
    }

    /// Schedules `jobs` on the keeper's threads. Returns true if jobs are queued and more threads could join: call it again,
    /// after [`MAX_QUEUED`].
    pub(super) fn start_work(self: &Arc<Self>, jobs: Vec<(JobKind, Job)>) -> bool {
        let (weak, background) = (Arc::downgrade(self), Arc::clone(&self.background));
        let run = move |job| match job {
            Job::Send { used, part, number } => used.engine.send_batches(part, number),
            Job::Return(used, what) => used.engine.carry_back(what),
            Job::Renew(part, batch) => {
                background.with(&weak, |engine| engine.renew_batch(part, &batch));
            }
            Job::NotifyLost(hold) => {
                background.with(&weak, |engine| engine.notify_lost(&hold));
            }
            Job::NotifyOutages => {
                background.with(&weak, |engine| engine.notify_outages());
            }
        };
        let may_hang = jobs
            .iter()
            .any(|(kind, _)| matches!(kind, JobKind::Return(_)));
        self.threads.push(jobs, may_hang, &run)
    }
}
