//! The signal of the loss of a guard, or of a guard over several names.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::engine::hold::HoldState;
use crate::engine::hold::acquired::Acquired;
use crate::engine::timer::MAX_SLEEP;
use crate::sync::{lock, run_caught, wait};

/// Reports the loss of a guard. For [`LockGuards`](crate::LockGuards), it reports the loss of any of their
/// names. Clones report the same loss.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::LockGuard;
///
/// fn stop_on_loss(guard: &LockGuard) -> Arc<AtomicBool> {
///     let stop = Arc::new(AtomicBool::new(false));
///     let flag = Arc::clone(&stop);
///     guard.lost_signal().on_lost(move || flag.store(true, Ordering::SeqCst));
///     stop
/// }
/// ```
#[derive(Clone)]
pub struct LostSignal {
    guards: Guards,
    clock: Arc<dyn Clock>,
}

#[derive(Clone)]
enum Guards {
    One(Acquired),
    Several(Arc<Several>),
}

/// Guards that are held together.
struct Several {
    guards: Vec<Acquired>,
    changes: Arc<Changes>,
}

/// Notifies threads that one of several guards was lost or released.
#[derive(Default)]
struct Changes {
    mutex: Mutex<()>,
    changed: Condvar,
}

/// Notifies `Changes` when it is called or dropped, at the end of a guard.
struct NotifyOnDrop(Arc<Changes>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        let _changing = lock(&self.0.mutex);
        self.0.changed.notify_all();
    }
}

/// The result of a wait for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The guard is lost.
    Lost,
    /// The guard was released, so it can no longer be lost.
    Released,
    /// The guard was neither lost nor released within the time.
    TimedOut,
}

impl LostSignal {
    pub(crate) fn new(guard: &Acquired, clock: &Arc<dyn Clock>) -> Self {
        Self {
            guards: Guards::One(guard.clone()),
            clock: Arc::clone(clock),
        }
    }

    /// Makes the signal of the first loss of several guards.
    pub(crate) fn of_several(guards: Vec<Acquired>, clock: &Arc<dyn Clock>) -> Self {
        let changes = Arc::new(Changes::default());
        for guard in &guards {
            let notify = NotifyOnDrop(Arc::clone(&changes));
            drop(guard.on_lost(move || drop(notify), &**clock));
        }
        Self {
            guards: Guards::Several(Arc::new(Several { guards, changes })),
            clock: Arc::clone(clock),
        }
    }

    /// Returns whether the guard is lost. False after it was released in time.
    pub fn is_lost(&self) -> bool {
        state_of(self.guards.all(), self.clock.now()) == HoldState::Lost
    }

    /// Blocks until the guard is lost or released, at most `limit`.
    pub fn wait(&self, limit: Duration) -> WaitOutcome {
        let deadline = self.clock.now() + limit;
        let state = match &self.guards {
            Guards::One(guard) => guard.wait_until_lost(deadline, &*self.clock),
            Guards::Several(several) => several.wait_until_lost(deadline, &*self.clock),
        };
        match state {
            HoldState::Held => WaitOutcome::TimedOut,
            HoldState::Lost => WaitOutcome::Lost,
            HoldState::Released => WaitOutcome::Released,
        }
    }

    /// Calls `callback` once when the guard is lost, and drops it uncalled when the guard is
    /// released. If the guard is lost already, this thread calls it at once.
    ///
    /// A thread of the keeper calls it. If the thread that drops the guard is the first to notice the
    /// loss, that thread calls it. The keeper no longer holds the name then, so the callback may lock
    /// it again. The callback should be quick: a few callbacks that hang can delay renewals. A panic
    /// in the callback, or in the drop of its captures, is caught.
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        // The first loss takes it.
        let callback = Arc::new(Mutex::new(Some(callback)));
        for guard in self.guards.all() {
            let callback = Arc::clone(&callback);
            let first = move || {
                let callback = lock(&callback).take();
                if let Some(callback) = callback {
                    callback();
                }
            };
            if let Some(first) = guard.on_lost(first, &*self.clock) {
                run_caught(first);
            }
        }
    }
}

impl Guards {
    fn all(&self) -> &[Acquired] {
        match self {
            Guards::One(guard) => std::slice::from_ref(guard),
            Guards::Several(several) => &several.guards,
        }
    }
}

/// Returns `Lost` if one of the guards is lost, else `Released` if one was released.
fn state_of(guards: &[Acquired], now: HostInstant) -> HoldState {
    let mut state = HoldState::Held;
    for guard in guards {
        match guard.state(now) {
            HoldState::Lost => return HoldState::Lost,
            HoldState::Released => state = HoldState::Released,
            HoldState::Held => {}
        }
    }
    state
}

impl Several {
    fn wait_until_lost(&self, deadline: HostInstant, clock: &dyn Clock) -> HoldState {
        let mut changing = lock(&self.changes.mutex);
        loop {
            let now = clock.now();
            let state = state_of(&self.guards, now);
            if state != HoldState::Held || now >= deadline {
                return state;
            }
            let ends = self.guards.iter().map(|guard| guard.hold.until());
            let until = ends.fold(deadline, HostInstant::min);
            // A Condvar's time-out does not advance while the host is suspended.
            let limit = until.saturating_since(now).min(MAX_SLEEP);
            changing = wait(&self.changes.changed, changing, Some(limit));
        }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.guards.all().iter().map(|guard| &guard.hold.name);
        f.debug_struct("LostSignal")
            .field("names", &names.collect::<Vec<_>>())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
