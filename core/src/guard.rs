//! What a caller holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::engine::hold::{Gone, Hold, HoldState};
use crate::engine::{Granted, Shared};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::proof::CommitProof;
use crate::provider::{Released, Renewal};
use crate::sync::run_caught;
use crate::token::FencingToken;

/// A held lock. Dropping it releases the lock, also while panicking: bounded in time, without a
/// panic of its own, and told to the observer. [`release`](Self::release) does the same and
/// answers.
///
/// It can be moved to another thread and shared by several.
///
/// # Loss
/// A guard can be lost: the store was out of reach for too long, the process was stopped, an operator
/// removed the lock, or a fixed lease ran out. It calls itself lost at its own deadline, before the
/// store grants the name to anyone else, with or without word from the store; from then on it
/// stays lost. Ask [`ensure_held`](Self::ensure_held) before what must not happen without the
/// lock, or pass [`token`](Self::token) along, so that the data itself refuses a late write.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct LockGuard {
    engine: Arc<Shared>,
    granted: Granted,
    token: FencingToken,
    released: bool,
}

impl LockGuard {
    pub(crate) fn new(engine: Arc<Shared>, granted: Granted) -> Result<Self, Error> {
        let token = granted.hold.token(granted.handovers)?;
        Ok(Self {
            engine,
            granted,
            token,
            released: false,
        })
    }

    /// The name that is held.
    pub fn name(&self) -> &LockName {
        &self.granted.hold.name
    }

    /// The fencing token of this grant: larger than that of every grant of the name before it.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Whether the lock can be proved to be held right now. Costs no call to the store.
    pub fn is_held(&self) -> bool {
        self.standing() == HoldState::Held
    }

    fn standing(&self) -> HoldState {
        let now = self.engine.clock.now();
        self.granted.hold.standing(self.granted.handovers, now)
    }

    /// An error where the lock is lost. Costs no call to the store.
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
        Error::new(
            ErrorKind::Lost,
            "the lock was lost: its lease could not be kept until now; stop, and do not write what it protects",
        )
        .with_name(self.name())
        .with_backend(self.engine.provider.backend())
    }

    /// How long the lock is sure to be held without another renewal; zero when it is lost.
    pub fn remaining(&self) -> Duration {
        match self.standing() {
            HoldState::Held => {
                let now = self.engine.clock.now();
                self.granted.hold.until().saturating_since(now)
            }
            HoldState::Lost | HoldState::Over => Duration::ZERO,
        }
    }

    /// A signal that tells the loss: to poll, to wait for, or to be called back by. It can outlive
    /// the guard.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal {
            hold: Arc::clone(&self.granted.hold),
            handovers: self.granted.handovers,
            clock: Arc::clone(&self.engine.clock),
        }
    }

    /// Renews now, whatever the policy: afterwards a full ttl (less the margin) remains. Where the
    /// keeper's own renewal is under way, its end is waited for first, at most until the guard's
    /// deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where the lock is lost; else the outcome is unknown, and the guard is
    /// held until its old deadline.
    pub fn renew(&self) -> Result<(), Error> {
        self.ensure_held()?;
        let hold = &self.granted.hold;
        let Ok((mut lease, deadline)) = hold.wait_to_renew(&*self.engine.clock) else {
            return Err(self.lost_error());
        };
        let asked_at = self.engine.clock.now();
        let answer = self
            .engine
            .provider
            .renew(&mut lease, hold.policy.ttl(), deadline);
        crate::engine::renewal::apply_renewal(&self.engine, hold, lease, &answer, asked_at);
        match answer {
            Ok(Renewal::Renewed) => self.ensure_held(),
            Ok(Renewal::Lost) => Err(self.lost_error()),
            Err(error) => Err(error
                .with_name(self.name())
                .with_backend(self.engine.provider.backend())),
        }
    }

    /// Returns the SQL that proves this hold within the application's own transaction, where the
    /// store has [`Capability::CommitProof`](crate::Capability::CommitProof). [`CommitProof`] says how
    /// to use it, and what to do on every other store. A renewal that is under way is waited for.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where the lock is lost, [`ErrorKind::Unsupported`] where the store has no
    /// such SQL.
    pub fn commit_proof(&self) -> Result<CommitProof<'_>, Error> {
        self.ensure_held()?;
        let provider = &self.engine.provider;
        let proof = self
            .granted
            .hold
            .read(&*self.engine.clock, |lease| provider.proof(lease));
        // It may have been lost while a renewal was waited for.
        self.ensure_held()?;
        match proof {
            Ok(Some(proof)) => Ok(CommitProof::new(proof)),
            Ok(None) => Err(Error::new(
                ErrorKind::Unsupported,
                "this store has no SQL that proves a hold within your transaction; call `renew` on the guard as the last step before the commit and roll back where it fails, write the guard's token beside the data, and refuse smaller tokens",
            )
            .with_name(self.name())
            .with_backend(self.engine.provider.backend())),
            Err(Gone) => Err(self.lost_error()),
        }
    }

    /// Releases the lock and says what was found.
    ///
    /// # Errors
    /// The store's answer is unknown; it frees the lock by itself after the ttl.
    pub fn release(mut self) -> Result<Released, Error> {
        self.released = true;
        self.engine.release(&self.granted)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            // The observer is told.
            let _ = self.engine.release(&self.granted);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.name())
            .field("token", &self.token.get())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Tells when a guard is lost. Clones tell the same.
#[derive(Clone)]
pub struct LostSignal {
    hold: Arc<Hold>,
    handovers: u32,
    clock: Arc<dyn Clock>,
}

/// What a wait for a loss ended with.
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
    /// Whether the guard is lost. False after it was released in time.
    pub fn is_lost(&self) -> bool {
        self.hold.standing(self.handovers, self.clock.now()) == HoldState::Lost
    }

    /// Blocks until the guard is lost or released, at most `limit`.
    pub fn wait(&self, limit: Duration) -> WaitOutcome {
        let deadline: HostInstant = self.clock.now() + limit;
        match self
            .hold
            .wait_until_lost(self.handovers, deadline, &*self.clock)
        {
            HoldState::Held => WaitOutcome::TimedOut,
            HoldState::Lost => WaitOutcome::Lost,
            HoldState::Over => WaitOutcome::Released,
        }
    }

    /// Has `callback` called once when the guard is lost: from a thread of the keeper, or from the
    /// one that drops the guard where that is first to notice; at once, from this thread, when the
    /// guard is lost already. It is dropped uncalled when the guard is released.
    ///
    /// When it is called, the keeper has let go of the name, so the callback may lock it again. It
    /// should be quick: a few callbacks that hang can delay renewals. A panic in it, also in the
    /// drop of what it captured, is caught.
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        let late = self
            .hold
            .on_lost(self.handovers, Box::new(callback), &*self.clock);
        if let Some(callback) = late {
            run_caught(callback);
        }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal")
            .field("name", &self.hold.name)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
