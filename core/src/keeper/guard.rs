//! The guard that a caller holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::provider::{Released, Renewal};
use crate::engine::hold::HoldState;
use crate::engine::hold::acquired::Acquired;
use crate::engine::{Engine, Shared};
use crate::error::{Error, ErrorKind};
use crate::keeper::lost_signal::LostSignal;
use crate::keeper::proof::CommitProof;
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;

/// A held lock. Dropping it releases the lock, also during a panic, without a panic of its own.
/// [`release`](Self::release) does the same and returns the store's answer.
///
/// A drop returns within 100 ms, whatever the store does. If the store has not answered after 80 ms, or is known not
/// to answer, the keeper's own threads ask it in order. They do so until it answers or has ended the lease by itself,
/// and also for a guard that is lost. Until then this process does not request the name again. The keeper's observer
/// is told the result, and the drop of the last [`LockKeeper`](crate::LockKeeper) waits for it.
///
/// It can be moved to another thread and shared by several.
///
/// # Loss
/// A guard can be lost. Either the store was unreachable for too long, the process was stopped, an
/// operator removed the lock, or a fixed lease ended. Without a reply from the store, it is lost at
/// its own deadline, before the store grants the name to another holder. A lost guard stays lost.
/// Call [`ensure_held`](Self::ensure_held) before what must not happen without the lock, or pass
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
    pub(crate) acquired: Acquired,
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

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
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
        LostSignal::new(&self.acquired, &self.engine.clock)
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

    /// Leaves the release of the lock to the caller.
    pub(crate) fn into_acquired(mut self) -> Acquired {
        self.is_released = true;
        self.acquired.clone()
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
