//! The trait that the author of a store implements, and the adapter to the engine.

use std::fmt;
use std::slice;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::batch::{
    AttemptRequest, Operation, ReleaseDispatch, ReleaseRequest, RenewRequest,
};
use crate::contract::provider::{
    AcquireRequest, ErasedLease, Grant, LeaseId, LockProvider, Released, Renewal, StoreInfo,
};
use crate::contract::sql::Proof;
use crate::contract::verifier::LeaseVerifier;
use crate::error::{Error, ErrorKind};

/// A store that can grant locks. The author of a store implements this trait.
///
/// The engine of a [`LockKeeper`](crate::LockKeeper) has the in-process queue, hand-overs, renewals, deadlines,
/// lost states, tokens and names. A backend has one store. Many threads call it at the same time. But one keeper
/// never *acquires* the same name twice at the same time, since only the head of the in-process queue asks the
/// store. The keeper may hold leases of the name meanwhile. Then it acquires a further permit, a fresh shared lease
/// in place of an older one, or an exclusive lease after its own shared leases.
///
/// # Duties
/// - **Exclusion.** For one store, namespace and name, at most one lease is live, over all
///   processes and keepers.
/// - **Modes.** Where the store declares [`Capability::Shared`](crate::Capability::Shared), several shared leases
///   of a name may be live, and none beside an exclusive one. Where it declares
///   [`Capability::Permits`](crate::Capability::Permits), fewer than `limit` permits are live before another one is
///   granted. No two have the same [slot](Grant::slot): a grant takes the smallest free one. The permits of a name
///   are independent of its lock. Acquiring a permit while permits of another limit are live is
///   [`ErrorKind::LimitMismatch`], also for a request with a wait; [`limit_mismatch`](crate::limit_mismatch) makes
///   the error. The engine never asks a store for a mode that it does not declare.
/// - **Lease.** The store frees the name by itself after the last grant or successful
///   [renewal](crate::RenewRequest). It does so not before the ttl and not later than the ttl + 1 s. The store's clock
///   or [`AcquireRequest::clock`] counts the time, never a wall clock that can step.
/// - **Epoch.** Every grant of a name has a larger [`Grant::epoch`] than all before it, also after the
///   store was restarted or wiped. If the store does not dictate a counter, use
///   [`epoch_at`](crate::epoch_at). Then tokens also grow when locks move here from another store.
/// - **Names.** Two different strings are two different locks. If the store cannot hold a name
///   unchanged, encode it without collisions.
/// - **Truth.** `Ok(None)` only when another holder was seen. An unreachable store is
///   [`ErrorKind::Unavailable`]; a reply that did not come is [`ErrorKind::Unknown`]. A backend makes
///   one attempt; after an unknown outcome the engine asks again, under the same
///   [`owner`](AcquireRequest::owner).
/// - **Waiting** is by notification; a jittered poll at most every 1 s covers lost notifications. One release wakes
///   one waiter. A waiter that is granted a shared lease or a permit wakes the next waiter that can be granted
///   beside it. First come, first served, whatever the modes: an attempt does not overtake an earlier waiter, even
///   if it could be granted. Processes that waited get the name before the process that kept it busy. A notified
///   waiter that does not respond delays the others only for a short time.
/// - **Nothing stays behind** after an acquisition that was not granted: no waiter's entry, no
///   connection, no thread.
/// - **No panic, and no call without a bound.** Every call returns by its deadline, and
///   [`acquire`](Self::acquire) by [`AcquireRequest::end`], whatever the server does.
///
/// The suite of `lockkeeper-conformance` tests each of these.
pub trait Backend: StoreInfo {
    /// What this backend remembers of a grant: plain data, such as the key and the owner.
    type Lease: fmt::Debug + Send + 'static;

    /// Acquires a name, and waits for it until [`AcquireRequest::deadline`] at the latest. The call
    /// returns by [`AcquireRequest::end`].
    ///
    /// A store that takes several operations in a [`batch`](Self::batch) is asked there first. Then this is the wait
    /// after an attempt that found another holder, or no free connection. A store that takes one operation a call is
    /// asked here at once.
    ///
    /// `Ok(None)` means that another holder had the name until the end of the wait, or that the
    /// request was cancelled. The engine checks the cancel token itself. Call
    /// [`AcquireRequest::contended`] before the wait, and before returning `Ok(None)`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if nothing can have been granted. [`ErrorKind::Unknown`] if the
    /// store did not reply to a request, so it may have granted the name to this
    /// [`owner`](AcquireRequest::owner).
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<Self::Lease>>, Error>;

    /// Releases what the store may have granted to an attempt of `request` that got no reply.
    ///
    /// A thread of the keeper calls it after an acquisition that ended with [`ErrorKind::Unknown`]. The process
    /// requests the name again only after that. The call returns by [`AcquireRequest::end`] and reports no
    /// error: if it fails, the name is free after the ttl. The default does nothing.
    fn abandon(&self, request: &AcquireRequest<'_>) {
        let _ = request;
    }

    /// Returns the number of the part of the store that keeps a name, such as a node of a cluster. A store with
    /// [`Capabilities::with_parts`](crate::Capabilities::with_parts) overrides it.
    ///
    /// Each part has its own batches, threads and outages, so a part that hangs does not delay requests to another.
    /// The engine calls this once for each request, and takes the number modulo
    /// [`Capabilities::parts`](crate::Capabilities::parts). An outdated number only costs time. The call does no
    /// I/O. The default is 0.
    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        let _ = request;
        0
    }

    /// Carries out attempts without a wait, renewals and releases, and sets the answer of each.
    ///
    /// The engine sends at least one operation, and up to [`Capabilities::batch`](crate::Capabilities::batch). By default that is one: such a
    /// store goes through them, and carries out each by itself. If the store takes many operations in one request,
    /// declare the number by [`Capabilities::with_batch`](crate::Capabilities::with_batch). Requests that the threads of
    /// a process make at the same moment come together then, and so do renewals that are due. The operations concern
    /// different leases and names, and have no order.
    ///
    /// The first operation may be a release that [`send_release`](Self::send_release) has sent:
    /// [`Operation::take_sent`] returns its connection. Then the whole batch goes on that connection: write the other
    /// operations, and read the replies in order. So the other operations may ask for the name that the release frees.
    /// If there are none, only read the reply. If the server refuses the release for a passing reason, such as a
    /// script that it does not know, the store may repeat the release in the same call. If the connection fails, answer
    /// the release and the others with [`ErrorKind::Unknown`]. The engine repeats the release.
    ///
    /// The call returns by the latest [deadline](Operation::deadline) of the operations. It need not end
    /// at an earlier one, since that caller stops waiting by itself. If a request gets no reply, each of
    /// its operations is [`ErrorKind::Unknown`], and the engine asks again for each.
    fn batch(&self, batch: &mut [Operation<'_, Self::Lease>]);

    /// Sends the release of a lease without waiting for the reply: a guard was dropped.
    ///
    /// The thread of the guard calls it, so it must not wait for a network. There are three kinds of stores:
    /// - A store in the process, or one that takes microseconds, releases the lease here and returns
    ///   [`ReleaseDispatch::Answered`]. It waits a few milliseconds for another process at the most. After
    ///   [`ErrorKind::Unknown`], a thread of the keeper repeats the release.
    /// - A store with batches and a connection of its own protocol takes an idle connection from its pool, writes the
    ///   release, and returns the connection in [`ReleaseDispatch::Sent`]. The next [`batch`](Self::batch) of the part
    ///   gets it back. If nothing is asked, a thread of the keeper comes for the reply after 5 to 10 ms. At most one release of a part
    ///   is under way like that. It returns [`ReleaseDispatch::NotSent`] if no connection is idle, if the socket does not
    ///   take all of the request at once, or if a part of it was written: then it closes the connection. It also does so
    ///   if the name may be asked for on another [`part`](Self::part) by now.
    /// - All others return [`ReleaseDispatch::NotSent`], which is the default. A thread of the keeper releases the lease,
    ///   by [`batch`](Self::batch), and no other thread of the process asks for the name until then.
    ///
    /// A forked child has what its parent has sent, and must not read from that connection. The store compares the
    /// process, drops the connection without closing it for the parent, and answers [`ErrorKind::Unknown`].
    fn send_release(&self, lease: &mut Self::Lease) -> ReleaseDispatch {
        let _ = lease;
        ReleaseDispatch::NotSent
    }

    /// Receives the handle by which this backend asks a keeper to verify its leases. Called once for each keeper.
    ///
    /// A backend may notice that leases may have ended: a session has ended, the server is empty, or an operator
    /// ran `unlock`. Such a backend keeps the handle, and calls [`verify`](LeaseVerifier::verify) as soon as it
    /// notices. The default drops the handle; then the next renewal notices a loss.
    fn watch_leases(&self, verifier: LeaseVerifier) {
        drop(verifier);
    }

    /// Extends a lease to `ttl` from now, and makes it independent of this process. A ticket passes it on then. Returns
    /// what identifies the lease; `None` if it is lost, as for a [renewal](crate::RenewRequest).
    ///
    /// From then on, the end of this process does not end the lease, and this backend neither renews nor ends it. It
    /// ends by itself after the ttl, unless a request [resumes](AcquireRequest::is_resume) it. Only a store with
    /// [`Capability::Tickets`](crate::Capability::Tickets) is asked. The call may be repeated after a lost reply.
    ///
    /// # Errors
    /// The outcome is unknown, as for a renewal. The call returns by `deadline`.
    fn detach(
        &self,
        lease: &mut Self::Lease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        let _ = (lease, ttl, deadline);
        Err(Error::new(
            ErrorKind::Unsupported,
            "this store has no tickets",
        ))
    }

    /// Returns the SQL by which a transaction of the application checks that this lease still holds
    /// the name. `None` if the store has no such SQL.
    ///
    /// The call does no I/O. The SQL must not return 1 for a later lease of the name. It must be
    /// true at the time at which it runs, whatever snapshot the transaction sees. A backend with
    /// such SQL declares [`Capability::CommitProof`](crate::Capability::CommitProof).
    fn proof(&self, lease: &Self::Lease) -> Option<Proof> {
        let _ = lease;
        None
    }
}

impl<B: Backend> LockProvider for B {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        let grant = Backend::acquire(self, request)?;
        Ok(grant.map(|grant| grant.map(ErasedLease::new)))
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        Backend::abandon(self, request);
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        Backend::part(self, request)
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        // Most batches are of one operation: nothing is allocated for it.
        if let [one] = batch {
            if let Some((mut typed, answer)) = one.downcast() {
                Backend::batch(self, slice::from_mut(&mut typed));
                answer.take(typed);
            }
            return;
        }
        let typed = batch.iter_mut().filter_map(Operation::downcast);
        let (mut typed, answers): (Vec<_>, Vec<_>) = typed.unzip();
        Backend::batch(self, &mut typed);
        for (answer, operation) in answers.into_iter().zip(typed) {
            answer.take(operation);
        }
    }

    fn send_release(&self, lease: &mut ErasedLease) -> ReleaseDispatch {
        match lease.downcast_mut() {
            Some(lease) => Backend::send_release(self, lease),
            None => ReleaseDispatch::Answered(Err(foreign_lease())),
        }
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        Backend::watch_leases(self, verifier);
    }

    fn detach(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        match lease.downcast_mut() {
            Some(lease) => Backend::detach(self, lease, ttl, deadline),
            None => Err(foreign_lease()),
        }
    }

    fn proof(&self, lease: &ErasedLease) -> Option<Proof> {
        Backend::proof(self, lease.downcast_ref()?)
    }
}

impl<'a> Operation<'a, ErasedLease> {
    /// Returns the same operation for a lease of type `L`, and where its answer goes. If the lease has
    /// another type, sets an error as the answer, and returns `None`.
    fn downcast<'s, L: Send + fmt::Debug + 'static>(
        &'s mut self,
    ) -> Option<(Operation<'s, L>, Answer<'s>)>
    where
        'a: 's,
    {
        match self {
            Operation::Acquire(it) => {
                let attempt = AttemptRequest {
                    request: it.request,
                    deadline: it.deadline,
                    answer: None,
                };
                Some((Operation::Acquire(attempt), Answer::Acquire(&mut it.answer)))
            }
            Operation::Renew(it) => {
                let Some(lease) = it.lease.downcast_mut() else {
                    it.answer = Some(Err(foreign_lease()));
                    return None;
                };
                let renewal = RenewRequest::new(lease, it.ttl, it.deadline);
                Some((Operation::Renew(renewal), Answer::Renew(&mut it.answer)))
            }
            Operation::Release(it) => {
                let Some(lease) = it.lease.downcast_mut() else {
                    it.answer = Some(Err(foreign_lease()));
                    return None;
                };
                let release = ReleaseRequest {
                    sent: it.sent.take(),
                    ..ReleaseRequest::new(lease, it.deadline)
                };
                Some((Operation::Release(release), Answer::Release(&mut it.answer)))
            }
        }
    }
}

/// The field for the answer of an operation.
enum Answer<'s> {
    Acquire(&'s mut Option<Result<Option<Grant<ErasedLease>>, Error>>),
    Renew(&'s mut Option<Result<Renewal, Error>>),
    Release(&'s mut Option<Result<Released, Error>>),
}

impl Answer<'_> {
    /// Takes the answer of the operation that was [downcast](Operation::downcast).
    fn take<L: Send + fmt::Debug + 'static>(self, operation: Operation<'_, L>) {
        match (self, operation) {
            (Answer::Acquire(answer), Operation::Acquire(it)) => {
                let erase = |grant: Option<Grant<L>>| grant.map(|it| it.map(ErasedLease::new));
                *answer = it.answer.map(|answer| answer.map(erase));
            }
            (Answer::Renew(answer), Operation::Renew(it)) => *answer = it.answer,
            (Answer::Release(answer), Operation::Release(it)) => *answer = it.answer,
            _ => {}
        }
    }
}

fn foreign_lease() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the lease belongs to another type of provider; give each provider its own leases",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Capabilities;

    #[derive(Debug)]
    struct Store;

    impl StoreInfo for Store {
        fn backend(&self) -> &'static str {
            "store"
        }

        fn location(&self) -> String {
            "store:".to_owned()
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::new()
        }
    }

    impl Backend for Store {
        type Lease = u8;

        fn acquire(&self, _: &AcquireRequest<'_>) -> Result<Option<Grant<u8>>, Error> {
            Ok(None)
        }

        fn batch(&self, batch: &mut [Operation<'_, u8>]) {
            for operation in batch {
                match operation {
                    Operation::Acquire(it) => it.answer = Some(Ok(None)),
                    Operation::Renew(it) => it.answer = Some(Ok(Renewal::Renewed)),
                    Operation::Release(it) => it.answer = Some(Ok(Released::Done)),
                }
            }
        }
    }

    #[test]
    fn lease_of_another_provider_is_an_error_and_never_lost() {
        let store: &dyn LockProvider = &Store;
        let (mut own, mut foreign) = (ErasedLease::new(1_u8), ErasedLease::new("foreign"));
        let (ttl, never) = (Duration::from_secs(1), HostInstant::NEVER);
        let renewal = |lease| Operation::Renew(RenewRequest::new(lease, ttl, never));
        let mut batch = [&mut own, &mut foreign].map(renewal);
        store.batch(&mut batch);
        let [Operation::Renew(renewed), Operation::Renew(refused)] = batch else {
            panic!("the operations are renewals");
        };
        assert_eq!(renewed.answer.unwrap().unwrap(), Renewal::Renewed);
        let refused = refused.answer.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Incompatible);
        let released = store.release(&mut foreign, HostInstant::NEVER);
        assert_eq!(released.unwrap_err().kind(), ErrorKind::Incompatible);
        let released = store.release(&mut own, HostInstant::NEVER);
        assert_eq!(released.unwrap(), Released::Done);
    }
}
