//! The provider.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::sync::Parker;
use lockkeeper_core::{
    AcquireRequest, Admin, AttemptRequest, Backend, Capabilities, Capability, Clock, Error, Grant,
    HostInstant, LeaseId, LeaseVerifier, LockName, Operation, Proof, Released, Renewal, StoreInfo,
    TransactionLockSql, Usage,
};

use crate::entry::MAX_LEASES;
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::register::Register;
use crate::store::{Call, RegisterStore};
use crate::task::{Answered, Others, Task, Verb, unexpected};
use crate::watch;

/// Grants locks in a store that reads entries, and writes them under a condition.
///
/// A free name costs a read, a write, and a write of the release. A name that the same provider has released last needs no
/// read. A session is kept every 0.5 s while names are acquired, in the same request as a read.
///
/// # Limits
/// - A semaphore has at most 100 permits, and a name at most 100 shared leases. A name has at most 150 waiting processes in
///   its queue. Further ones wait outside of it, and so do those that come while the first waiter takes a free name, or
///   whose writes were refused. They enter it later, in any order.
/// - A first waiter that does not take the free name, since its process is stopped, delays the others for a second or two.
///   A waiter that is dead holds back who could be granted the name beside the present holders for 5 s, or for the store's
///   shortest session.
/// - If a store does not notify, each waiting process polls. The first one polls every 4 to 100 ms, and the others less
///   often.
/// - Do not use it on both sides of a fork; open it after forking.
pub struct RegisterProvider {
    register: Arc<Register>,
}

impl RegisterProvider {
    /// Makes a provider on a store, with the clock of its keepers. A thread ends leases that are no longer renewed.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](lockkeeper_core::ErrorKind::Unavailable) if the system starts no thread.
    pub fn new(store: impl RegisterStore, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let parker = Parker::new();
        let register = Register::new(Arc::new(store), clock, parker.unparker().clone());
        let register = Arc::new(register);
        register.start()?;
        watch::start(&register, parker)?;
        Ok(Self { register })
    }

    /// Returns the store.
    pub fn store(&self) -> &dyn RegisterStore {
        &*self.register.store
    }
}

impl fmt::Debug for RegisterProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegisterProvider")
            .field(self.store())
            .finish()
    }
}

impl StoreInfo for RegisterProvider {
    fn backend(&self) -> &'static str {
        self.store().backend()
    }

    fn location(&self) -> String {
        self.store().location()
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = self.store().capabilities();
        let limit = u32::try_from(MAX_LEASES).unwrap_or(u32::MAX);
        capabilities
            .with(Capability::Shared)
            .with(Capability::Permits)
            .with(Capability::Tickets)
            .with_max_permits(limit)
    }

    fn usage(&self) -> Option<Usage> {
        self.store().usage()
    }

    fn server(&self) -> Option<String> {
        self.store().server()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.register)
    }

    fn transaction_lock(&self, name: &LockName, wait: Duration) -> Option<TransactionLockSql> {
        self.store().transaction_lock(name, wait)
    }

    fn note_transaction_epoch(&self, epoch: u64) {
        self.store().note_transaction_epoch(epoch);
    }
}

impl Backend for RegisterProvider {
    type Lease = RegisterLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<RegisterLease>>, Error> {
        if let Some(deadline) = request.deadline() {
            return self.register.wait(request, deadline);
        }
        let limit = self.store().capabilities().attempt_limit();
        let attempt = AttemptRequest {
            request,
            deadline: request.end().min(request.now() + limit),
            answer: None,
        };
        let mut one = [Operation::Acquire(attempt)];
        self.batch(&mut one);
        match one {
            [Operation::Acquire(it)] => it.answer.unwrap_or_else(|| Err(unexpected())),
            _ => Err(unexpected()),
        }
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        let key = Key::of(request.name(), request.mode());
        let owner = request.owner().lease_id().to_string();
        let (register, call) = (&self.register, Call::until(request.end()));
        if request.is_resume() {
            // The lease stays for others that resume it.
            return;
        }
        if register.remove(&key, &owner, (None, true), call).is_err() {
            // What is written late is removed when its lease would end.
            let ends = request.now() + request.ttl();
            register.ends.enter(&key, &owner, None, ends);
        }
    }

    fn batch(&self, batch: &mut [Operation<'_, RegisterLease>]) {
        let Some(deadline) = batch.iter().map(Operation::deadline).max() else {
            return;
        };
        // A cancel ends the whole call, so only a single operation can be cancelled.
        let cancel = match batch {
            [Operation::Acquire(single)] => single.request.cancel(),
            _ => None,
        };
        let asked = batch.iter().map(|operation| match operation {
            Operation::Acquire(it) => {
                let key = Key::of(it.request.name(), it.request.mode());
                (key, it.request.owner().lease_id().to_string())
            }
            Operation::Renew(it) => (it.lease.key.clone(), it.lease.owner.clone()),
            Operation::Release(it) => (it.lease.key.clone(), it.lease.owner.clone()),
        });
        let asked: Vec<(Key, String)> = asked.collect();
        let tasks = batch.iter().zip(&asked);
        let tasks = tasks.map(|(operation, (key, owner))| match operation {
            Operation::Acquire(it) => self.register.task(key, owner, it.request),
            Operation::Renew(it) => Task {
                key,
                owner,
                verb: Verb::Renew {
                    lease: &*it.lease,
                    ttl: it.ttl,
                },
            },
            Operation::Release(it) => Task {
                key,
                owner,
                verb: Verb::Remove {
                    epoch: Some(it.lease.epoch),
                    alone_at: it.lease.alone_at,
                    settles: false,
                    settling: None,
                },
            },
        });
        let mut tasks: Vec<_> = tasks.collect();
        let call = Call { deadline, cancel };
        let answers = self
            .register
            .carry_out(&mut tasks, &mut Others::new(), call);
        for (operation, answer) in batch.iter_mut().zip(answers) {
            self.answer(operation, answer.unwrap_or_else(|| Err(unexpected())));
        }
    }

    fn detach(
        &self,
        lease: &mut RegisterLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        let (register, call) = (&self.register, Call::until(deadline));
        let session = register.store.open_session(ttl, call)?;
        let task = Task {
            key: &lease.key,
            owner: &lease.owner,
            verb: Verb::Move { lease, session },
        };
        let moved = register.carry_out_one(task, &mut Others::new(), call)?;
        register.ends.remove(&lease.owner, lease.epoch);
        match moved {
            Answered::Renewed(Renewal::Renewed, _) => {
                let id = LeaseId::parse(&lease.owner);
                id.map(Some).ok_or_else(unexpected)
            }
            _ => Ok(None),
        }
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store().watch_leases(verifier.clone());
        self.register.verifiers.add(verifier);
    }

    fn proof(&self, lease: &RegisterLease) -> Option<Proof> {
        self.store().proof(lease)
    }
}

impl RegisterProvider {
    /// Sets the answer of an operation.
    fn answer(
        &self,
        operation: &mut Operation<'_, RegisterLease>,
        answer: Result<Answered, Error>,
    ) {
        match (operation, answer) {
            (Operation::Acquire(it), Ok(Answered::Granted(grant))) => {
                it.answer = Some(Ok(Some(grant)));
            }
            (Operation::Acquire(it), Ok(Answered::Waits(_))) => {
                it.request.contended();
                it.answer = Some(Ok(None));
            }
            (Operation::Acquire(it), Ok(Answered::Gone)) => it.answer = Some(Ok(None)),
            (Operation::Renew(it), Ok(Answered::Renewed(renewal, alone_at))) => {
                it.lease.alone_at = alone_at;
                it.answer = Some(Ok(renewal));
            }
            (Operation::Release(it), Ok(Answered::Removed(done))) => {
                let RegisterLease { owner, epoch, .. } = &*it.lease;
                self.register.ends.remove(owner, *epoch);
                it.answer = Some(Ok(match done {
                    true => Released::Done,
                    false => Released::AlreadyLost,
                }));
            }
            (operation, Err(error)) => operation.fail(error),
            (operation, Ok(_)) => operation.fail(unexpected()),
        }
    }
}
