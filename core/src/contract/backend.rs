//! The trait that the author of a store implements, and the adapter to the engine.

use std::fmt;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::batch::{Operation, foreign_lease};
use crate::contract::provider::{
    AcquireRequest, ErasedLease, Grant, LockProvider, Released, Renewal, StoreInfo,
};
use crate::contract::sql::Proof;
use crate::contract::verifier::LeaseVerifier;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;

/// A store that can grant locks, as its author implements it.
///
/// The engine ([`LockKeeper`](crate::LockKeeper)) brings the in-process queue, hand-over, renewal, deadlines, lost
/// state, tokens and names; a backend brings one store. Many threads call it at the same time. But one keeper never
/// *acquires* the same name twice at the same time, since only the head of the in-process queue asks the store. It
/// may ask while it holds leases of the name. Then it asks for further permits, for a fresh shared lease in place of
/// an older one, or exclusively behind its own shared leases.
///
/// # Duties
/// - **Exclusion.** For one store, namespace and name at most one lease is live, whatever process
///   and keeper it was granted to.
/// - **Modes.** Where the store declares [`Capability::Shared`](crate::Capability::Shared), several shared leases of
///   a name may be live, and none beside an exclusive one. Where it declares
///   [`Capability::Permits`](crate::Capability::Permits), fewer than `limit` permits are live before another one is
///   granted. No two have the same [slot](Grant::slot): a grant takes the smallest free one. The permits of a name
///   have nothing to do with its lock. An attempt to acquire a permit while permits of another limit are live is
///   [`ErrorKind::LimitMismatch`], also if it would wait; [`limit_mismatch`](crate::limit_mismatch) makes the error.
///   A store without a capability is never asked for that mode.
/// - **Lease.** The store frees the name by itself, counted from the last [`acquire`](Backend::acquire) or successful
///   [`renew`](Backend::renew). It does so no later than ttl + 1 s after that, and not before ttl has passed. Time is
///   the store's clock or [`AcquireRequest::clock`], never a wall clock that can step.
/// - **Epoch.** Every grant of a name has a larger [`Grant::epoch`] than all before it, also after
///   the store was restarted or wiped. Where the store leaves the choice, it is counted as by
///   [`epoch_at`](crate::epoch_at), so that tokens grow as well when locks move here from another store.
/// - **Names.** Two different strings are two different locks. A name that the store cannot hold as
///   it is, is encoded without collisions.
/// - **Truth.** `Ok(None)` only when another holder was seen. An unreachable store is
///   [`ErrorKind::Unavailable`]; a reply that did not come is [`ErrorKind::Unknown`]. The engine asks
///   again then, under the same [`owner`](AcquireRequest::owner); a backend makes one attempt.
/// - **Waiting** is by notification; a jittered poll at most every 1 s covers lost notifications. One release wakes
///   one waiter. A waiter that is granted a shared lease or a permit wakes the next waiter that can be granted
///   beside it. First come, first served, whatever the modes: an attempt does not pass a waiter that came before
///   it, though it could be granted. Processes that waited get the name before the process that kept it busy. A
///   notified waiter that does not come delays the others for a short time only.
/// - **Nothing stays behind** after an acquisition that was not granted: no waiter's entry, no
///   connection, no thread.
/// - **No panic, no call without an end.** Every call returns by its deadline, and
///   [`acquire`](Self::acquire) by [`AcquireRequest::end`], whatever the server does.
///
/// The suite of `lockkeeper-conformance` tests each of these.
pub trait Backend: StoreInfo {
    /// What this backend remembers of one grant: plain data, such as the key and the owner.
    type Lease: fmt::Debug + Send + 'static;

    /// Acquires a name, and waits for it no longer than [`AcquireRequest::deadline`]. The call returns by
    /// [`AcquireRequest::end`].
    ///
    /// `Ok(None)` means that another holder was seen until the wait was over, or that the request
    /// was cancelled: the engine checks the token itself. Before it starts to wait, and before it
    /// returns `Ok(None)`, the backend calls [`AcquireRequest::contended`].
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if nothing can have been granted. [`ErrorKind::Unknown`] if the
    /// store did not reply to a request, so it may have granted the name to this
    /// [`owner`](AcquireRequest::owner).
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<Self::Lease>>, Error>;

    /// Frees what an unanswered attempt of `request` may have been granted.
    ///
    /// A thread of the keeper calls it after an acquisition that ended with [`ErrorKind::Unknown`]. The process
    /// requests the name again only after that. The call returns by [`AcquireRequest::end`] and reports nothing:
    /// the ttl frees the name where it fails. The default does nothing.
    fn abandon(&self, request: &AcquireRequest<'_>) {
        let _ = request;
    }

    /// Proves that the store still keeps this lease, and has it live for `ttl` from now on.
    ///
    /// [`Renewal::Lost`] comes from the store alone: the lease has expired, or another lease has taken
    /// its place. An expired lease is not revived, even if the name is free.
    ///
    /// # Errors
    /// The outcome is unknown; the engine moves no deadline and tries again while time is left.
    /// The call returns by `deadline`.
    fn renew(
        &self,
        lease: &mut Self::Lease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error>;

    /// Returns the number of the part of the store that keeps a name, such as a node of a cluster. A store with
    /// [`Capabilities::with_parts`](crate::Capabilities::with_parts) overrides it.
    ///
    /// Each part has batches, threads and outages of its own, so a part that hangs does not delay what is asked of another.
    /// The engine asks once for each request, and takes the number modulo
    /// [`Capabilities::parts`](crate::Capabilities::parts). A number that is out of date costs time alone. The call
    /// does no I/O. The default is 0.
    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        let _ = request;
        0
    }

    /// Carries out up to [`Capabilities::batch`](crate::Capabilities::batch) operations, each with an
    /// answer of its own.
    ///
    /// What the threads of a process ask at the same moment comes here together, and so do the renewals
    /// that are due. Override it if the store takes many operations in one request, and say how many by
    /// [`Capabilities::with_batch`](crate::Capabilities::with_batch); without that, only the single verbs
    /// are called. The operations are about different leases and names, in no order.
    ///
    /// The call returns by the latest [deadline](Operation::deadline). An operation that is due earlier is
    /// no reason to end it: its caller does not wait for the others. A request that got no reply is
    /// [`ErrorKind::Unknown`] for each operation in it, and the engine asks again for each.
    fn batch(&self, batch: &mut [Operation<'_, Self::Lease>]) {
        for operation in batch {
            operation.carry_out(self);
        }
    }

    /// Frees the name if, and only if, it is still this lease's, and wakes one waiter.
    ///
    /// # Errors
    /// The outcome is unknown; the engine asks again while time is left, and the store frees the name
    /// by itself after ttl. The call returns by `deadline`.
    fn release(&self, lease: &mut Self::Lease, deadline: HostInstant) -> Result<Released, Error>;

    /// Receives the handle by which this backend asks a keeper to verify its leases. Called once for each keeper.
    ///
    /// A backend can notice that leases may have ended, such as with a session, an empty server or an operator's
    /// `unlock`. Such a backend keeps the handle, and calls [`verify`](LeaseVerifier::verify) as soon as it notices.
    /// The default drops it: losses are then noticed by the next renewal.
    fn watch_leases(&self, verifier: LeaseVerifier) {
        drop(verifier);
    }

    /// Returns SQL by which a transaction of the application can check that this lease stands;
    /// `None` if the store cannot be asked from there.
    ///
    /// It does no I/O. The SQL must not return 1 for a later lease of the name. It must answer for
    /// the time at which it runs, whatever snapshot the transaction sees. A backend that has it
    /// declares [`Capability::CommitProof`](crate::Capability::CommitProof).
    fn proof(&self, lease: &Self::Lease) -> Option<Proof> {
        let _ = lease;
        None
    }
}

impl<L> Operation<'_, L> {
    /// Carries the operation out by the single verb for it, and answers.
    pub fn carry_out<B: Backend<Lease = L> + ?Sized>(&mut self, backend: &B) {
        match self {
            Operation::Acquire(it) => it.answer = Some(backend.acquire(it.request)),
            Operation::Renew(it) => {
                it.answer = Some(backend.renew(it.lease, it.ttl, it.deadline));
            }
            Operation::Release(it) => it.answer = Some(backend.release(it.lease, it.deadline)),
        }
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

    fn renew(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        match lease.downcast_mut() {
            Some(lease) => Backend::renew(self, lease, ttl, deadline),
            None => Err(foreign_lease()),
        }
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        Backend::part(self, request)
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        let typed = batch.iter_mut().filter_map(Operation::downcast);
        let (mut typed, answers): (Vec<_>, Vec<_>) = typed.unzip();
        Backend::batch(self, &mut typed);
        for (answer, operation) in answers.into_iter().zip(typed) {
            answer.take(operation);
        }
    }

    fn release(&self, lease: &mut ErasedLease, deadline: HostInstant) -> Result<Released, Error> {
        match lease.downcast_mut() {
            Some(lease) => Backend::release(self, lease, deadline),
            None => Err(foreign_lease()),
        }
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        Backend::watch_leases(self, verifier);
    }

    fn proof(&self, lease: &ErasedLease) -> Option<Proof> {
        Backend::proof(self, lease.downcast_ref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Capabilities;
    use crate::contract::batch::RenewRequest;
    use crate::error::ErrorKind;

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

        fn renew(&self, _: &mut u8, _: Duration, _: HostInstant) -> Result<Renewal, Error> {
            Ok(Renewal::Renewed)
        }

        fn release(&self, _: &mut u8, _: HostInstant) -> Result<Released, Error> {
            Ok(Released::Done)
        }
    }

    #[test]
    fn lease_of_another_provider_is_an_error_and_never_lost() {
        let store: &dyn LockProvider = &Store;
        let (mut own, mut foreign) = (ErasedLease::new(1_u8), ErasedLease::new("foreign"));
        let ttl = Duration::from_secs(1);
        let mut batch = [&mut own, &mut foreign].map(|lease| {
            Operation::Renew(RenewRequest {
                lease,
                ttl,
                deadline: HostInstant::NEVER,
                answer: None,
            })
        });
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
