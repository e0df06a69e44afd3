//! What a store must be able to do: two traits, and the request and answers between them and the
//! engine.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::admin::Admin;
use crate::cancel::CancelToken;
use crate::capabilities::Capabilities;
use crate::clock::{Clock, HostInstant, SystemClock};
use crate::error::Error;
use crate::name::LockName;
use crate::proof::Proof;

/// A store that can grant locks.
///
/// The engine ([`LockKeeper`](crate::LockKeeper)) brings the in-process queue, hand-over, renewal,
/// deadlines, lost state, tokens and names; a provider brings one store. It is called from many
/// threads at once, but for one keeper never twice at the same time to *acquire* the same name:
/// only the head of the in-process queue asks.
///
/// # Duties
/// - **Exclusion.** For one store, namespace and name at most one lease is live, whoever asks:
///   other keepers of this process and other processes are other owners.
/// - **Lease.** The store frees the name by itself, no later than ttl + 1 s after the last
///   [`acquire`](LockProvider::acquire) or successful [`renew`](Lease::renew), and not before ttl
///   has passed. It works by the store's clock or [`AcquireRequest::clock`], never by a wall clock
///   that can step.
/// - **Epoch.** Every grant of a name has a larger [`Lease::epoch`] than all before it, also after
///   the store was restarted or wiped.
/// - **Names.** Two different strings are two different locks. What the store cannot hold as it
///   is, the provider encodes without collisions.
/// - **Truth.** `Ok(None)` only when somebody else was seen to hold the name. Out of reach is
///   [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable). A reply that did not come is asked
///   for again under the same [`owner`](AcquireRequest::owner) while time is left, else
///   [`ErrorKind::Unknown`](crate::ErrorKind::Unknown), with the store freeing what it may have
///   granted.
/// - **Waiting** is by notification, with a bounded (at most 1 s) and jittered look behind it.
///   One release wakes one waiter. A name that was kept busy by one process goes to the processes
///   that waited before that one gets it again; one that was woken and does not come delays the
///   others by a short grace only.
/// - **Nothing stays behind** after an acquisition that was not granted: no waiter's entry, no
///   connection, no thread.
/// - **No panic, no call without an end:** every call returns by its deadline, plus what one
///   attempt takes where the deadline has passed already.
///
/// The suite of `lockkeeper-conformance` tests each of these.
pub trait LockProvider: fmt::Debug + Send + Sync + 'static {
    /// The store's short name, for errors and observers: `"sqlite"`.
    fn backend(&self) -> &'static str;

    /// What this store promises beyond the contract, and its limits. Constant.
    fn capabilities(&self) -> Capabilities;

    /// What was asked of the store so far, where this provider counts it.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// The answers to those on call, where this store has them. A store that keeps its locks where
    /// others can see them should.
    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    /// Asks for a name and waits for it no longer than [`AcquireRequest::deadline`].
    ///
    /// `Ok(None)`: somebody else holds it, and did when the wait was over (or when the request was
    /// cancelled: the engine looks at the token itself). Before it starts to wait, and before it
    /// returns `Ok(None)`, the provider calls [`AcquireRequest::contended`].
    ///
    /// # Errors
    /// See *Truth* above.
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant>, Error>;

    /// Renews up to [`Capabilities::renew_batch`] leases of this provider, each with an answer of
    /// its own. Override it where the store takes many at once; a store that does should find its
    /// own lease type with [`Lease`]'s `Any`.
    fn renew_batch(&self, batch: &mut [RenewRequest<'_>]) {
        for renew in batch {
            let answer = renew.lease.renew(renew.ttl, renew.deadline);
            renew.answer = Some(answer);
        }
    }
}

/// What a provider has cost its store so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Commands or statements that were sent.
    pub commands: u64,
    /// Connections that are open now.
    pub connections: u32,
}

/// One grant as the store sees it.
///
/// The engine calls it from one thread at a time, not always the same one: a lease is handed over
/// to other waiters of the process by moving it, connection and all. Dropping a lease without
/// [`release`](Lease::release) may leave the name to its ttl.
pub trait Lease: fmt::Debug + Send + Any {
    /// The number of this grant, from 1 to 2^56 - 1; see the duty *Epoch* of [`LockProvider`].
    fn epoch(&self) -> u64;

    /// Proves that the store still keeps this lease, and has it live for `ttl` from now on.
    ///
    /// [`Renewal::Lost`] only on the store's word: the lease ran out, or somebody else's stands
    /// there. A lease that ran out is not revived, even if nobody took the name.
    ///
    /// # Errors
    /// The outcome is unknown; the engine moves no deadline and tries again while time is left.
    /// The call returns by `deadline`.
    fn renew(&mut self, ttl: Duration, deadline: HostInstant) -> Result<Renewal, Error>;

    /// Frees the name if, and only if, it is still this lease's, and wakes one waiter.
    ///
    /// # Errors
    /// The outcome is unknown; the store frees the name by itself after ttl. The call returns by
    /// `deadline`, plus one attempt where that has passed already.
    fn release(self: Box<Self>, deadline: HostInstant) -> Result<Released, Error>;

    /// How a transaction of the application's can ask whether this very lease still stands; `None`
    /// where the store cannot be asked from there. Does no I/O. The SQL must give 1 for no later
    /// lease of the name, and must answer for the moment at which it runs, whatever snapshot the
    /// transaction sees. A provider declares it: [`Capability::CommitProof`](crate::Capability::CommitProof).
    fn proof(&self) -> Option<Proof> {
        None
    }
}

/// A lease, and since when it counts.
#[derive(Debug)]
pub struct Grant {
    /// The lease.
    pub lease: Box<dyn Lease>,
    /// A time before the request that was granted was sent. Where that is long ago (the store did
    /// the waiting, or this process was stopped while the reply lay in its socket), the engine
    /// renews once before it believes in the lease.
    pub asked_at: HostInstant,
}

/// One lease of a [`LockProvider::renew_batch`].
#[derive(Debug)]
pub struct RenewRequest<'a> {
    /// The lease to renew.
    pub lease: &'a mut dyn Lease,
    /// For how long, from now.
    pub ttl: Duration,
    /// When the answer is of no use any more.
    pub deadline: HostInstant,
    /// The answer, as [`Lease::renew`] gives it. `None` counts as unknown.
    pub answer: Option<Result<Renewal, Error>>,
}

/// The store's word on a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still this owner's, for another ttl.
    Renewed,
    /// Not this owner's any more.
    Lost,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The name was this owner's until now.
    Done,
    /// It had been lost before; nobody else's lock was touched.
    AlreadyLost,
}

/// Identifies one request. Unique over all hosts, processes and times; a store keeps it beside the
/// lock to recognise its own grant after a lost reply, and to tell people who holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The id of the process that asks.
    pub pid: u32,
    /// A random number from the system, drawn for this request.
    pub nonce: u64,
    /// The number of the request within the process.
    pub request: u64,
}

impl Owner {
    /// Draws the identity anew for every request. Nothing that is cached would do: forked siblings,
    /// and processes restored from one snapshot, share all memory, also the keys of `RandomState`.
    /// A pid does not tell them apart: two pid namespaces have the same pids, and pids are used
    /// again. The kernel's random numbers differ in all of these cases. The two system calls cost
    /// 0.3 to 2 µs, and only on stores that ask for the owner.
    fn draw(request: u64) -> Self {
        let pid = std::process::id();
        let nonce = getrandom::u64().unwrap_or_else(|_| {
            // No random numbers on this system: then as different as std can make it.
            RandomState::new().hash_one((pid, SystemClock.now()))
        });
        Self {
            pid,
            nonce,
            request,
        }
    }
}

/// What the engine asks of a provider.
pub struct AcquireRequest<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) ttl: Duration,
    pub(crate) deadline: Option<HostInstant>,
    pub(crate) started: HostInstant,
    /// Counts the requests of the process whose owner was asked for.
    pub(crate) requests: &'a AtomicU64,
    pub(crate) owner: Cell<Option<Owner>>,
    pub(crate) cancel: Option<&'a CancelToken>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) contended: &'a dyn Fn(),
}

impl<'a> AcquireRequest<'a> {
    /// Which lock; the namespace is the provider's own matter, known since it was opened.
    pub fn name(&self) -> &'a LockName {
        self.name
    }

    /// How long the lease lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When the wait is over; `None`: a single attempt, no waiting.
    /// [`HostInstant::NEVER`] waits for ever.
    pub fn deadline(&self) -> Option<HostInstant> {
        self.deadline
    }

    /// Who asks. The same for every attempt of this request.
    pub fn owner(&self) -> Owner {
        self.owner.get().unwrap_or_else(|| {
            let owner = Owner::draw(self.requests.fetch_add(1, Ordering::Relaxed));
            self.owner.set(Some(owner));
            owner
        })
    }

    /// Wakes a wait in the store early; after that the answer is `Ok(None)`.
    pub fn cancel(&self) -> Option<&'a CancelToken> {
        self.cancel
    }

    /// Whether the wait was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    /// The engine's clock: deadlines are its moments.
    pub fn clock(&self) -> &'a dyn Clock {
        self.clock
    }

    /// Now, by [`clock`](Self::clock).
    pub fn now(&self) -> HostInstant {
        self.clock.now()
    }

    /// When the engine made this request. A store inside the process may give it as
    /// [`Grant::asked_at`] of a grant for which it neither waited nor did any I/O: that saves two
    /// looks at the clock, since the engine takes such a grant for fresh.
    pub fn started(&self) -> HostInstant {
        self.started
    }

    /// Tells the engine that somebody else was seen to hold the name: threads of this process that
    /// would not wait can go. Cheap, and may be called again.
    pub fn contended(&self) {
        (self.contended)();
    }
}

impl fmt::Debug for AcquireRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireRequest")
            .field("name", self.name)
            .field("ttl", &self.ttl)
            .field("deadline", &self.deadline)
            .field("owner", &self.owner())
            .finish_non_exhaustive()
    }
}
