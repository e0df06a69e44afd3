//! The guard that a caller holds, and the signal of its loss.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::Shared;
use crate::engine::hold::HoldState;
use crate::engine::hold::acquired::Acquired;
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::proof::CommitProof;
use crate::provider::{Released, Renewal};
use crate::sync::run_caught;
use crate::token::FencingToken;

/// A held lock. Dropping it releases the lock, also during a panic, without a panic of its own.
/// [`release`](Self::release) does the same and returns the store's answer.
///
/// A drop returns within 100 ms, whatever the store does. A store that has not answered after 80 ms, or
/// is known not to answer, is asked by the keeper's own threads, in order, until it answers or has ended
/// the lease by itself; so is a store for a guard that is lost. Until then this process does not request
/// the name again. The keeper's observer is told the result, and the drop of the last
/// [`LockKeeper`](crate::LockKeeper) waits for it.
///
/// It can be moved to another thread and shared by several.
///
/// # Loss
/// A guard can be lost: the store was unreachable for too long, the process was stopped, an operator
/// removed the lock, or a fixed lease ran out. It calls itself lost at its own deadline, before the
/// store grants the name to anyone else, with or without word from the store, and stays lost. Call
/// [`ensure_held`](Self::ensure_held) before what must not happen without the lock, or pass
/// [`token`](Self::token) along, so that the data itself refuses a late write.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, LockGuard};
///
/// fn charge(seat: LockGuard, pay: impl Fn(u64)) -> Result<(), Error> {
///     seat.ensure_held()?;
///     pay(seat.token().get());
///     seat.release().map(|_| ())
/// }
/// ```
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct LockGuard {
    engine: Arc<Shared>,
    acquired: Acquired,
    is_released: bool,
}

impl LockGuard {
    pub(crate) fn new(engine: Arc<Shared>, acquired: Acquired) -> Self {
        Self {
            engine,
            acquired,
            is_released: false,
        }
    }

    /// Returns the name that is held.
    pub fn name(&self) -> &LockName {
        &self.acquired.hold.name
    }

    /// Returns the mode in which it is held.
    pub fn mode(&self) -> Mode {
        self.acquired.hold.mode
    }

    pub(crate) fn slot(&self) -> u32 {
        self.acquired.hold.slot
    }

    /// Returns the fencing token of this grant: larger than that of every grant of the name before. Guards that
    /// share a name may be numbered in another order than they came, but all after the exclusive grants
    /// before them.
    pub fn token(&self) -> FencingToken {
        self.acquired.token()
    }

    /// Returns whether the lock can be proved to be held right now. Costs no call to the store.
    pub fn is_held(&self) -> bool {
        self.acquired.state(self.engine.clock.now()) == HoldState::Held
    }

    /// Returns an error if the lock is lost. Costs no call to the store.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`].
    pub fn ensure_held(&self) -> Result<(), Error> {
        if self.is_held() {
            return Ok(());
        }
        Err(self.lost_error())
    }

    fn lost_error(&self) -> Error {
        self.error(
            ErrorKind::Lost,
            "the lock was lost: its lease could not be kept until now; stop, and do not write what it protects",
        )
    }

    pub(crate) fn error(&self, kind: ErrorKind, text: &str) -> Error {
        self.engine.located(self.name(), Error::new(kind, text))
    }

    pub(crate) fn location(&self) -> String {
        self.engine.provider.location()
    }

    /// Returns how long the lock stays held without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        let now = self.engine.clock.now();
        match self.acquired.state(now) {
            HoldState::Held => self.acquired.hold.until().saturating_since(now),
            HoldState::Lost | HoldState::Released => Duration::ZERO,
        }
    }

    /// Returns a signal of the loss, which can be checked, waited for, and can call back. It can
    /// outlive the guard.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal {
            acquired: self.acquired.clone(),
            clock: Arc::clone(&self.engine.clock),
        }
    }

    /// Renews now, whatever the policy: afterwards a full ttl (less the margin) remains, and the time of
    /// [`max_hold`](crate::AcquireOptions::max_hold) begins anew. It first waits for a renewal of the
    /// keeper that is under way, at most until the guard's deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock is lost; else the outcome is unknown, and the guard is held
    /// until its old deadline.
    pub fn renew(&self) -> Result<(), Error> {
        self.ensure_held()?;
        match self.engine.renew_now(&self.acquired.hold)? {
            Renewal::Renewed => self.ensure_held(),
            Renewal::Lost => Err(self.lost_error()),
        }
    }

    /// Returns the SQL that proves this hold within the application's own transaction, where the
    /// store has [`Capability::CommitProof`](crate::Capability::CommitProof). [`CommitProof`] says how
    /// to use it, and what to do on every other store. It waits for a renewal that is under way.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock is lost, [`ErrorKind::Unsupported`] if the store has no such
    /// SQL.
    pub fn commit_proof(&self) -> Result<CommitProof<'_>, Error> {
        self.ensure_held()?;
        let (provider, clock) = (&self.engine.provider, &*self.engine.clock);
        let read = |lease: &_| {
            provider.proof(lease).ok_or_else(|| self.error(
                ErrorKind::Unsupported,
                "this store has no SQL that proves a hold within your transaction; call `renew` on the guard as the last step before the commit and roll back where it fails, write the guard's token beside the data, and refuse smaller tokens",
            ))
        };
        let proof = self.acquired.hold.read(clock, read);
        let proof = proof.ok_or_else(|| self.lost_error())?;
        // It may have been lost during the wait for a renewal.
        self.ensure_held()?;
        proof.map(|proof| CommitProof::new(proof, self))
    }

    /// Releases the lock and returns what was found.
    ///
    /// # Errors
    /// The store's answer is unknown; it frees the lock by itself after the ttl.
    pub fn release(mut self) -> Result<Released, Error> {
        self.is_released = true;
        self.engine.release(&self.acquired)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.is_released {
            self.engine.release_dropped(&self.acquired);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.name())
            .field("token", &self.token().get())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Reports the loss of a guard. Clones report the same loss.
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
    acquired: Acquired,
    clock: Arc<dyn Clock>,
}

/// What ended a wait for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The guard is lost.
    Lost,
    /// The guard was released; it cannot be lost any more.
    Released,
    /// Neither happened in this time.
    TimedOut,
}

impl LostSignal {
    /// Returns whether the guard is lost. False after it was released in time.
    pub fn is_lost(&self) -> bool {
        self.acquired.state(self.clock.now()) == HoldState::Lost
    }

    /// Blocks until the guard is lost or released, at most `limit`.
    pub fn wait(&self, limit: Duration) -> WaitOutcome {
        let deadline = self.clock.now() + limit;
        match self.acquired.wait_until_lost(deadline, &*self.clock) {
            HoldState::Held => WaitOutcome::TimedOut,
            HoldState::Lost => WaitOutcome::Lost,
            HoldState::Released => WaitOutcome::Released,
        }
    }

    /// Calls `callback` once when the guard is lost, and drops it uncalled when the guard is
    /// released. If the guard is lost already, this thread calls it at once.
    ///
    /// It is called on a thread of the keeper, or on the one that drops the guard if that is the
    /// first to notice the loss. The keeper has let go of the name by then, so the callback may lock
    /// it again. It should be quick: a few callbacks that hang can delay renewals. A panic in it, also
    /// in the drop of what it captured, is caught.
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        if let Some(callback) = self.acquired.on_lost(callback, &*self.clock) {
            run_caught(callback);
        }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal")
            .field("name", &self.acquired.hold.name)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
