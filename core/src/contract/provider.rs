//! Requests to a store, its grants and answers, and the trait by which the engine calls a store of
//! any type.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::cancel::CancelToken;
use crate::capabilities::Capabilities;
use crate::clock::{Clock, HostInstant, SystemClock};
use crate::contract::admin::Admin;
use crate::contract::batch::{Operation, ReleaseDispatch, ReleaseRequest, RenewRequest};
use crate::contract::sql::Proof;
use crate::contract::sql::TransactionLockSql;
use crate::contract::verifier::LeaseVerifier;
use crate::error::Error;
use crate::mode::Mode;
use crate::name::LockName;
use crate::process::process_id;

/// How long the work of a call may last beyond the call's deadline. The call itself returns at most 100 ms after
/// its deadline; the other 20 ms are for waking threads.
pub(crate) const GRACE: Duration = Duration::from_millis(80);

/// Describes a store, to the engine and to people.
pub trait StoreInfo: fmt::Debug + Send + Sync + 'static {
    /// Returns the store's short name, for errors and observers: `"sqlite"`.
    fn backend(&self) -> &'static str;

    /// Returns a URL that identifies the store and the namespace, and shows no secret.
    ///
    /// Two keepers that were opened alike return the same text, and keepers of two stores or
    /// namespaces return different ones.
    /// [`StoreUrl::location`](crate::StoreUrl::location) composes it.
    fn location(&self) -> String;

    /// Returns what this store promises beyond the contract, and its limits. Constant.
    fn capabilities(&self) -> Capabilities;

    /// Returns how many requests were sent so far, and the open connections. `None` if this backend does not
    /// count them.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Returns the identity of the server: one text for all its addresses and databases. `None` if it is not known.
    /// A [quorum](https://docs.rs/lockkeeper-quorum) counts each server once. The call does no I/O.
    fn server(&self) -> Option<String> {
        None
    }

    /// Returns the interface for operators. `None` if the store has none.
    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    /// Returns the SQL by which a transaction of the application acquires a name's exclusive lock until the
    /// transaction ends. The SQL waits for at most `wait`. `None` if the store has no such lock.
    ///
    /// The call does no I/O. The lock and the leases of the name must exclude each other, and their epochs must
    /// grow together.
    fn transaction_lock(&self, name: &LockName, wait: Duration) -> Option<TransactionLockSql> {
        let _ = (name, wait);
        None
    }

    /// Records the epoch of a lock that a transaction acquired by
    /// [`transaction_lock`](Self::transaction_lock). Later grants must get larger epochs. The default does
    /// nothing.
    fn note_transaction_epoch(&self, epoch: u64) {
        let _ = epoch;
    }
}

/// A store as the engine calls it: [`Backend`](crate::Backend) with its type of lease erased.
///
/// Implement [`Backend`](crate::Backend), which documents each verb and the duties behind it; every
/// backend is a `LockProvider`. Implement this trait only for a provider that wraps another one:
/// delegate every required verb to an `Arc<dyn LockProvider>` and pass leases through as they are.
pub trait LockProvider: StoreInfo {
    /// Acquires a name: [`Backend::acquire`](crate::Backend::acquire).
    ///
    /// # Errors
    /// As [`Backend::acquire`](crate::Backend::acquire).
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error>;

    /// Frees what a lost reply may have granted: [`Backend::abandon`](crate::Backend::abandon).
    fn abandon(&self, request: &AcquireRequest<'_>);

    /// Renews a lease by a batch of one.
    ///
    /// # Errors
    /// As [`RenewRequest::answer`], and [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible) for a lease of another
    /// type of provider.
    fn renew(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        RenewRequest::new(lease, ttl, deadline).ask(|one| self.batch(one))
    }

    /// Returns the part of the store that keeps a name: [`Backend::part`](crate::Backend::part).
    fn part(&self, request: &AcquireRequest<'_>) -> usize;

    /// Carries out several operations: [`Backend::batch`](crate::Backend::batch).
    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]);

    /// Releases a lease by a batch of one.
    ///
    /// # Errors
    /// As [`ReleaseRequest::answer`], and [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible) for a lease of another
    /// type of provider.
    fn release(&self, lease: &mut ErasedLease, deadline: HostInstant) -> Result<Released, Error> {
        ReleaseRequest::new(lease, deadline).ask(|one| self.batch(one))
    }

    /// Sends a release without waiting for its reply: [`Backend::send_release`](crate::Backend::send_release).
    fn send_release(&self, lease: &mut ErasedLease) -> ReleaseDispatch;

    /// Receives the handle by which the store asks a keeper to verify its leases:
    /// [`Backend::watch_leases`](crate::Backend::watch_leases).
    fn watch_leases(&self, verifier: LeaseVerifier);

    /// Renews a lease that no process has from then on: [`Backend::detach`](crate::Backend::detach).
    ///
    /// # Errors
    /// As [`Backend::detach`](crate::Backend::detach), and [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible) for a lease of another type of
    /// provider.
    fn detach(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error>;

    /// Returns the proof of a lease: [`Backend::proof`](crate::Backend::proof).
    fn proof(&self, lease: &ErasedLease) -> Option<Proof>;
}

/// The number of requests to a store so far, and of the open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Commands or statements that were sent.
    pub commands: u64,
    /// Connections that are open now.
    pub connections: u32,
}

/// A granted lease. `L` is the provider's data, which the engine passes to every later call about the lease.
///
/// One thread at a time uses a lease; a hand-over moves the lease to another thread of the process.
/// If a lease is dropped without a [release](ReleaseRequest), the name may stay locked until
/// the ttl is over.
#[derive(Debug)]
pub struct Grant<L> {
    /// The lease.
    pub lease: L,
    /// The number of this grant, from 1 to 2^56 - 1; see the duty *Epoch* of
    /// [`Backend`](crate::Backend).
    pub epoch: u64,
    /// A time before the granted request was sent, from which the engine counts the ttl. That time is long ago if
    /// the store did the waiting, or if this process was stopped before it read the reply. Then the engine renews
    /// the lease before it relies on it.
    pub asked_at: HostInstant,
    /// The slot of a permit, from 0 to its limit - 1. 0 in the other modes.
    pub slot: u32,
}

impl<L> Grant<L> {
    /// Returns the same grant with another representation of its lease.
    pub fn map<M>(self, convert: impl FnOnce(L) -> M) -> Grant<M> {
        Grant {
            lease: convert(self.lease),
            epoch: self.epoch,
            asked_at: self.asked_at,
            slot: self.slot,
        }
    }
}

/// A lease of any backend. Only the adapter of that backend knows its type.
pub struct ErasedLease {
    lease: Box<dyn AnyLease>,
    /// The part of the store that granted it.
    pub(crate) part: usize,
}

trait AnyLease: Any + fmt::Debug + Send {}

impl<L: Any + fmt::Debug + Send> AnyLease for L {}

impl ErasedLease {
    pub(crate) fn new(lease: impl fmt::Debug + Send + 'static) -> Self {
        Self {
            lease: Box::new(lease),
            part: 0,
        }
    }

    pub(crate) fn downcast_ref<L: 'static>(&self) -> Option<&L> {
        let any: &dyn Any = &*self.lease;
        any.downcast_ref()
    }

    pub(crate) fn downcast_mut<L: 'static>(&mut self) -> Option<&mut L> {
        let any: &mut dyn Any = &mut *self.lease;
        any.downcast_mut()
    }
}

impl fmt::Debug for ErasedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

/// The store's answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is still this owner's, for another ttl.
    Renewed,
    /// The lease is not this owner's any more.
    Lost,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was held until the release.
    Done,
    /// The lock was lost before. No other owner's lock was released.
    AlreadyLost,
}

/// Identifies one request, over all hosts, processes and times. A store keeps it beside the lock. By it the store
/// recognises the request's grant after a lost reply, and shows the holder to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The id of the process that asks.
    pub pid: u32,
    /// A random number from the system, drawn for this request.
    pub nonce: u64,
    /// The number of the request within the process.
    pub request: u64,
    /// The wall-clock time of the request, for people.
    pub since: SystemTime,
}

/// Identifies a lease that a ticket passes on: the nonce and the number of the [`Owner`] to which it was granted. It
/// stays the same however often the lease is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId {
    /// The [nonce](Owner::nonce) of the owner.
    pub nonce: u64,
    /// The [number](Owner::request) of the owner's request.
    pub request: u64,
}

impl LeaseId {
    /// Reads an identity from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let (nonce, request) = text.split_once('-')?;
        Some(Self {
            nonce: u64::from_str_radix(nonce, 16).ok()?,
            request: request.parse().ok()?,
        })
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.nonce, self.request)
    }
}

impl Owner {
    /// Returns what identifies the lease that this owner is granted.
    pub fn lease_id(&self) -> LeaseId {
        LeaseId {
            nonce: self.nonce,
            request: self.request,
        }
    }

    /// Draws a new identity, once for each request. Nothing cached is unique: forked siblings, and
    /// processes restored from one snapshot, share all memory, also the keys of `RandomState`. Pids
    /// are used again, and in other pid namespaces. Only the kernel's random numbers differ. The
    /// system call takes 0.2 to 1 µs, and occurs only on stores that read the owner.
    fn draw() -> Self {
        static REQUESTS: AtomicU64 = AtomicU64::new(1);
        let pid = process_id();
        let nonce = getrandom::u64().unwrap_or_else(|_| {
            // This system has no random numbers: as different as std can make it.
            RandomState::new().hash_one((pid, SystemClock.now()))
        });
        Self {
            pid,
            nonce,
            request: REQUESTS.fetch_add(1, Ordering::Relaxed),
            since: SystemTime::now(),
        }
    }
}

/// Pauses after a failed attempt, or returns an error to end the attempts. The time is that of the store's last
/// answer to the attempt, if there was one.
pub(crate) type Pause<'a> = dyn Fn(&Error, Option<HostInstant>) -> Result<(), Error> + 'a;

/// A request of the engine to acquire a name.
pub struct AcquireRequest<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) mode: Mode,
    pub(crate) proposed_epoch: Option<u64>,
    pub(crate) ttl: Duration,
    pub(crate) deadline: Option<HostInstant>,
    /// See [`end`](Self::end).
    pub(crate) end: HostInstant,
    pub(crate) started: Cell<HostInstant>,
    pub(crate) owner: Cell<Option<Owner>>,
    pub(crate) is_retry: Cell<bool>,
    /// See [`is_resume`](Self::is_resume).
    pub(crate) is_resume: bool,
    /// When the store last answered the attempt that is under way.
    pub(crate) answered_at: Cell<Option<HostInstant>>,
    pub(crate) cancel: Option<&'a CancelToken>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) contended: &'a dyn Fn(),
    pub(crate) retry: &'a Pause<'a>,
}

impl<'a> AcquireRequest<'a> {
    /// Makes the request of a single attempt under a new owner. Tests of a backend need it, and stores that
    /// consist of other stores.
    pub fn attempt(name: &'a LockName, ttl: Duration, clock: &'a dyn Clock) -> Self {
        Self {
            name,
            mode: Mode::Exclusive,
            proposed_epoch: None,
            ttl,
            deadline: None,
            end: HostInstant::NEVER,
            started: Cell::new(clock.now()),
            owner: Cell::new(None),
            is_retry: Cell::new(false),
            is_resume: false,
            answered_at: Cell::new(None),
            cancel: None,
            clock,
            contended: &|| {},
            retry: &|error, _| Err(error.clone()),
        }
    }

    /// Returns the name to lock. The provider knows its namespace since it was opened.
    pub fn name(&self) -> &'a LockName {
        self.name
    }

    /// Sets the mode of the request, which is exclusive otherwise.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the mode, which decides beside which other holders the name may be granted.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Sets the epoch that the request proposes for its grant: see [`proposed_epoch`](Self::proposed_epoch).
    #[must_use]
    pub fn with_proposed_epoch(mut self, epoch: u64) -> Self {
        self.proposed_epoch = Some(epoch);
        self
    }

    /// Returns the epoch that the request proposes for its grant, from 1 to
    /// [`MAX_EPOCH`](crate::MAX_EPOCH). `None` leaves the choice to the store. A keeper's own requests
    /// have `None`; a quorum proposes epochs to its members.
    ///
    /// Only a store with [`Capability::ProposedEpoch`](crate::Capability::ProposedEpoch) gets such requests.
    /// They are for an exclusive lock, without a wait. If the name is free, and the epoch is larger than all
    /// earlier ones of the name, the store grants exactly this epoch. The store may compare with a coarser
    /// unit, and with the epochs of other names. If the epoch is too small, the answer is
    /// [`Error::epoch_too_small`] with the largest epoch that the store refuses.
    pub fn proposed_epoch(&self) -> Option<u64> {
        self.proposed_epoch
    }

    /// Makes the request one that resumes a lease: see [`is_resume`](Self::is_resume).
    #[must_use]
    pub fn resuming(mut self, lease: LeaseId) -> Self {
        self.owner.set(Some(Owner {
            pid: process_id(),
            nonce: lease.nonce,
            request: lease.request,
            since: SystemTime::now(),
        }));
        self.is_resume = true;
        self
    }

    /// Returns whether the request resumes a lease that a ticket passes on.
    ///
    /// Only a store with [`Capability::Tickets`](crate::Capability::Tickets) gets such requests. They are for an
    /// exclusive lock, without a wait. The [`owner`](Self::owner) has the nonce and the number of the owner to which
    /// the lease was granted, and is this process. If that owner's lease is live, whichever process has it, the store
    /// extends it to the ttl, gives it a larger epoch, and grants it to this request. From then on, the lease's former
    /// holder can neither renew nor release it. Otherwise the answer is `Ok(None)`, also if the name is free.
    pub fn is_resume(&self) -> bool {
        self.is_resume
    }

    /// Sets the end of the request's wait.
    #[must_use]
    pub fn waiting_until(mut self, deadline: HostInstant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the token that ends the wait of the request early.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: Option<&'a CancelToken>) -> Self {
        self.cancel = cancel;
        self
    }

    /// Returns how long the lease lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns when the wait is over. `None` is a single attempt without a wait, and
    /// [`HostInstant::NEVER`] a wait without an end.
    pub fn deadline(&self) -> Option<HostInstant> {
        self.deadline
    }

    /// Sets the time by which [`Backend::acquire`](crate::Backend::acquire) must return.
    #[must_use]
    pub fn ending_at(mut self, end: HostInstant) -> Self {
        self.end = end;
        self
    }

    /// Returns the time by which [`Backend::acquire`](crate::Backend::acquire) must return, whatever the
    /// store does. It bounds every request of the acquisition: each attempt, its repetition after a lost
    /// reply, and the confirmation of its grant.
    ///
    /// It is 80 ms after the [`deadline`](Self::deadline), so that the store can still answer the last attempt. For
    /// a single attempt, it is [`Capabilities::attempt_limit`](crate::Capabilities::attempt_limit) after the start.
    /// The engine waits no longer, and the keeper's threads release a grant that comes later.
    pub fn end(&self) -> HostInstant {
        self.end
    }

    /// Returns the owner of this request, which is the same for all its attempts.
    pub fn owner(&self) -> Owner {
        self.owner.get().unwrap_or_else(|| {
            let owner = Owner::draw();
            self.owner.set(Some(owner));
            owner
        })
    }

    /// Returns whether an earlier attempt of this request got no reply. Then this owner may hold the
    /// name already.
    pub fn is_retry(&self) -> bool {
        self.is_retry.get()
    }

    /// Returns the token that ends a wait in the store early. After a cancel, the answer is `Ok(None)`. A backend must not
    /// cancel it: it may be the caller's token for several calls, or the keeper's own.
    pub fn cancel(&self) -> Option<&'a CancelToken> {
        self.cancel
    }

    /// Returns whether the wait was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    /// Returns the engine's clock, by which deadlines are counted.
    pub fn clock(&self) -> &'a dyn Clock {
        self.clock
    }

    /// Returns the time by [`clock`](Self::clock).
    pub fn now(&self) -> HostInstant {
        self.clock.now()
    }

    /// Returns when the engine made this request. A store inside the process may use it as
    /// [`Grant::asked_at`] if it neither waited nor did any I/O. That saves reading the clock again,
    /// and the engine does not check the age of such a grant.
    pub fn started(&self) -> HostInstant {
        self.started.get()
    }

    /// Tells the engine that another holder was seen. Then single attempts of other threads of this
    /// process end. The call is cheap, and may be repeated.
    pub fn contended(&self) {
        self.answered_at.set(Some(self.now()));
        (self.contended)();
    }

    /// Tells the engine that a waiter's attempt failed, and pauses. Returns whether to make another
    /// attempt; if not, return the error.
    ///
    /// Call it only for a waiter that would lose its position in the store's wait queue by returning. After any
    /// other failure, [`Backend::acquire`](crate::Backend::acquire) returns the error, and the engine calls it
    /// again.
    pub fn retry(&self, error: &Error) -> bool {
        let goes_on = (self.retry)(error, self.answered_at.get()).is_ok();
        if goes_on {
            self.answered_at.set(None);
        }
        goes_on
    }
}

impl fmt::Debug for AcquireRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireRequest")
            .field("name", self.name)
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .field("deadline", &self.deadline)
            .field("owner", &self.owner())
            .finish_non_exhaustive()
    }
}
