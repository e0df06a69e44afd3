//! The guard that a caller holds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::capabilities::Capability;
use crate::contract::provider::{Released, Renewal};
use crate::engine::hold::HoldState;
use crate::engine::hold::acquired::Acquired;
use crate::engine::{Engine, EngineOwner};
use crate::error::{Error, ErrorKind};
use crate::keeper::lost_signal::LostSignal;
use crate::keeper::proof::CommitProof;
use crate::keeper::ticket::{Ticket, TicketParts, unsupported};
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;

/// A held lock. Dropping it releases the lock, also during a panic, without a panic of its own.
/// [`release`](Self::release) does the same, and returns the store's answer.
///
/// A drop waits for no answer of a server. It sends the release, or leaves that to the keeper's threads, as
/// during an outage and for a lost guard. If the answer does not come, they repeat the release until the store
/// answers, or has ended the lease by itself. This process requests the name again only after the release. The
/// keeper's observers receive the result, and the drop of the last [`LockKeeper`](crate::LockKeeper) waits for it.
/// On SQLite a drop may wait for another process that writes, for a few milliseconds.
///
/// A guard can be moved to another thread, and shared by several threads.
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
    engine: Arc<EngineOwner>,
    pub(crate) acquired: Acquired,
    is_released: bool,
}

impl LockGuard {
    pub(crate) fn new(engine: Arc<EngineOwner>, acquired: Acquired) -> Self {
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

    /// Returns the mode in which the name is held.
    pub fn mode(&self) -> Mode {
        self.acquired.hold.mode
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the slot of a permit, from 0 to the limit - 1; 0 for a lock. No two permits of a semaphore that are held
    /// have the same slot, so it can number connections, ports or directories. The tokens of a slot's grants grow.
    pub fn slot(&self) -> u32 {
        self.acquired.hold.slot
    }

    /// Returns the fencing token of this grant. The token of an exclusive guard is larger than that of every
    /// earlier grant of the name. The tokens of shared guards may be in another order than their grants, but
    /// are larger than those of all earlier exclusive grants.
    pub fn token(&self) -> FencingToken {
        self.acquired.token()
    }

    /// Returns whether the lock is provably held now. Does not contact the store.
    pub fn is_held(&self) -> bool {
        self.acquired.state(self.engine.clock.now()) == HoldState::Held
    }

    /// Returns an error if the lock is lost. Does not contact the store.
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

    /// Returns the signal of this guard's loss. A program can check it, wait for it, or register a
    /// callback. The signal can outlive the guard.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new(&self.acquired, &self.engine.clock)
    }

    /// Renews the lease now, whatever the lease policy. Afterwards a full ttl, less the margin, remains,
    /// and the time of [`max_hold`](crate::AcquireOptions::max_hold) starts again. If the keeper renews
    /// the lease already, the call first waits for that, at most until the guard's deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock is lost. After any other error the outcome is unknown, and
    /// the guard is held until its old deadline.
    pub fn renew(&self) -> Result<(), Error> {
        self.ensure_held()?;
        match self.engine.renew_now(&self.acquired.hold)? {
            Renewal::Renewed => self.ensure_held(),
            Renewal::Lost => Err(self.lost_error()),
        }
    }

    /// Returns the SQL that proves this hold within the application's own transaction, where the store
    /// has [`Capability::CommitProof`](crate::Capability::CommitProof). [`CommitProof`] says how to
    /// use it, and what to do on every other store. If a renewal is under way, the call waits for its
    /// end.
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

    /// Ends this guard without releasing the lock, and returns a ticket, by which another process goes on with the
    /// lock: see [`LockKeeper::resume`](crate::LockKeeper::resume).
    ///
    /// The lease is renewed once more, for its ttl. If nobody resumes it until [`Ticket::good_until`], the store frees
    /// the name. So choose a [ttl](crate::AcquireOptions::lease) as long as the ticket may lie about. Until then, this
    /// process waits for the name as any other does. Neither the end of the keeper nor that of the process ends the lock.
    ///
    /// ```
    /// # use lockkeeper_core as lockkeeper;
    /// use std::time::Duration;
    /// use lockkeeper::{AcquireOptions, Error, LeasePolicy, LockKeeper, Ticket};
    ///
    /// fn enqueue(keeper: &LockKeeper, insert: impl Fn(&str)) -> Result<(), Error> {
    ///     let ttl = Duration::from_secs(600);
    ///     let options = AcquireOptions::new().lease(LeasePolicy::Renewed { ttl });
    ///     let ticket = keeper.lock_with("report:7", &options)?.detach()?;
    ///     insert(&ticket.to_string()); // into the queue of jobs
    ///     Ok(())
    /// }
    ///
    /// fn work(keeper: &LockKeeper, ticket: &str, report: impl Fn()) -> Result<(), Error> {
    ///     let guard = keeper.resume(&ticket.parse::<Ticket>()?)?;
    ///     report();
    ///     guard.release().map(|_| ())
    /// }
    /// ```
    ///
    /// # Errors
    /// After an error, the lock is released as by a drop.
    /// - [`ErrorKind::Unsupported`] if the store has no [`Capability::Tickets`], and for a shared lock.
    /// - [`ErrorKind::Lost`] if the lock is lost.
    /// - [`ErrorKind::Unavailable`], [`ErrorKind::Unknown`] and others if the store gave no answer.
    pub fn detach(mut self) -> Result<Ticket, Error> {
        if !self.engine.capabilities.has(Capability::Tickets) {
            return Err(self.error(ErrorKind::Unsupported, &unsupported()));
        }
        if self.mode() != Mode::Exclusive {
            let text = "only an exclusive lock can be detached";
            return Err(self.error(ErrorKind::Unsupported, text));
        }
        self.ensure_held()?;
        let Some(detached) = self.engine.detach(&self.acquired)? else {
            return Err(self.lost_error());
        };
        self.is_released = true;
        let ttl = self.acquired.hold.policy.ttl();
        let passed = self.engine.clock.now().saturating_since(detached.asked_at);
        Ok(Ticket::new(TicketParts {
            location: self.location(),
            name: self.name().clone(),
            token: self.token(),
            lease: detached.id,
            ttl,
            good_until: SystemTime::now() + ttl.saturating_sub(passed),
        }))
    }

    /// Returns the acquisition, and leaves its release to the caller.
    pub(crate) fn into_acquired(mut self) -> Acquired {
        self.is_released = true;
        self.acquired.clone()
    }

    /// Releases the lock, and returns whether it was still held. Waits for the store's answer, for 5 s at most. If the
    /// store cannot be reached, it waits for 2 s until that answers.
    ///
    /// # Errors
    /// The store's answer is unknown. The keeper's threads go on with the release, as after a drop. The store frees the
    /// lock by itself after the ttl at the latest.
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
