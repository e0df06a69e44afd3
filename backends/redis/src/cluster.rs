//! A cluster: one store for each primary, and the way of each request to the primary that owns its slot.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Clock, Error, ErrorKind, Grant, HostInstant, LeaseVerifiers,
    Operation, ReleaseRequest, Released, RenewRequest, Renewal,
};
use lockkeeper_remote::{Counts, Endpoint};
use parking_lot::Mutex;

use crate::acquire::acquire;
use crate::batch::{batch, released, renewal};
use crate::bucket_keys::{lock_key, slot};
use crate::lease::{RedisLease, millis};
use crate::node::Node;
use crate::options::RedisOptions;
use crate::scripts::{RELEASE, RENEW};
use crate::slot_map::SlotMap;
use crate::store::{Parts, Store};

/// How many nodes a request may be sent to one after the other. Two nodes that each name the other one are asked
/// no longer.
const MAX_NODES: usize = 5;

pub(crate) struct Cluster {
    pub(crate) options: RedisOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    pub(crate) map: Arc<SlotMap>,
    /// The stores that were needed so far.
    stores: Mutex<Vec<Arc<Store>>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("nodes", &self.options.nodes)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A node that a request is sent to.
#[derive(Clone, PartialEq)]
enum Target {
    Owner(Endpoint),
    /// The node that takes the slot over, which has the key already.
    Next(Endpoint),
}

impl Target {
    fn endpoint(&self) -> &Endpoint {
        let (Self::Owner(endpoint) | Self::Next(endpoint)) = self;
        endpoint
    }
}

impl Cluster {
    pub(crate) fn new(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        if options.nodes.is_empty() {
            let text = "these options name a single server; make them by RedisOptions::cluster, or use RedisProvider";
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        Ok(Self {
            map: Arc::new(SlotMap::new(options, Arc::clone(&clock))),
            options: options.clone(),
            namespace: namespace.to_owned(),
            clock,
            counts: Arc::default(),
            verifiers: Arc::default(),
            stores: Mutex::default(),
        })
    }

    pub(crate) fn key(&self, request: &AcquireRequest<'_>) -> String {
        let (name, of_permits) = (request.name().as_str(), request.mode().is_permit());
        lock_key(&self.namespace, name, of_permits)
    }

    /// Returns the store at a node, and drops those of nodes that have no slot any more.
    pub(crate) fn store(&self, endpoint: &Endpoint) -> Result<Arc<Store>, Error> {
        let is_at = |store: &Arc<Store>, endpoint: &Endpoint| {
            store
                .node
                .as_ref()
                .is_some_and(|node| node.endpoint == *endpoint)
        };
        let mut stores = self.stores.lock();
        if let Some(store) = stores.iter().find(|store| is_at(store, endpoint)) {
            return Ok(Arc::clone(store));
        }
        let is_used = |store: &Arc<Store>| {
            let node = store.node.as_ref();
            node.is_some_and(|node| self.map.is_used(&node.endpoint))
        };
        let parts = Parts {
            counts: Arc::clone(&self.counts),
            verifiers: Arc::clone(&self.verifiers),
            node: Some(Node {
                map: Arc::clone(&self.map),
                endpoint: endpoint.clone(),
            }),
        };
        let options = self.options.at(endpoint.clone());
        let store = Store::of_parts(&options, &self.namespace, Arc::clone(&self.clock), parts)?;
        let (mut used, unused): (Vec<_>, Vec<_>) = stores.drain(..).partition(is_used);
        used.push(Arc::clone(&store));
        *stores = used;
        // A store closes its connections when it is dropped, which must not be waited for.
        drop(stores);
        drop(unused);
        Ok(store)
    }

    /// Acquires a name at the node that owns its slot.
    pub(crate) fn acquire(
        &self,
        request: &AcquireRequest<'_>,
    ) -> Result<Option<Grant<RedisLease>>, Error> {
        let until = request.deadline();
        let until = until.unwrap_or(request.now() + self.options.remote.attempt_time());
        let key = self.key(request);
        let mut target = Target::Owner(self.map.owner(slot(&key), until)?);
        for _ in 1..MAX_NODES {
            let result = acquire(&*self.store(target.endpoint())?, request);
            match self.further(slot(&key), &target, result.as_ref().err(), until) {
                Some(next @ Target::Owner(_)) => target = next,
                _ => return result,
            }
        }
        acquire(&*self.store(target.endpoint())?, request)
    }

    /// Releases a lease, and returns whether it was live.
    pub(crate) fn release(&self, key: &str, text: &str, until: HostInstant) -> Result<bool, Error> {
        let mut target = Target::Owner(self.map.owner(slot(key), until)?);
        let release = |target: &Target| {
            let store = self.store(target.endpoint())?;
            match target {
                Target::Owner(_) => store.release(key, text, until),
                Target::Next(_) => store.ask_next(&RELEASE, key, &[text], until),
            }
        };
        for _ in 1..MAX_NODES {
            let result = release(&target);
            match self.further(slot(key), &target, result.as_ref().err(), until) {
                Some(next) => target = next,
                None => return result,
            }
        }
        release(&target)
    }

    /// Returns the node to try after this one, if a request has failed there and nothing came of it.
    fn further(
        &self,
        slot: u16,
        tried: &Target,
        error: Option<&Error>,
        until: HostInstant,
    ) -> Option<Target> {
        if error?.kind() != ErrorKind::Unavailable {
            return None;
        }
        if let (Target::Owner(_), Some(next)) = (tried, self.map.moves_to(slot)) {
            return Some(Target::Next(next));
        }
        let owner = Target::Owner(self.map.owner(slot, until).ok()?);
        (owner != *tried).then_some(owner)
    }

    /// Carries out all operations, and answers each: those of one node together.
    pub(crate) fn batch(&self, operations: &mut [Operation<'_, RedisLease>]) {
        let mut pending = Vec::new();
        for operation in operations {
            match self
                .map
                .owner(self.slot_of(operation), operation.deadline())
            {
                Ok(owner) => pending.push((Target::Owner(owner), operation)),
                Err(error) => operation.fail(error),
            }
        }
        for _ in 0..MAX_NODES {
            let mut failed = Vec::new();
            for (target, mut operations) in self.by_target(pending) {
                self.run_at(&target, &mut operations);
                for operation in operations {
                    if let Some(next) = self.further_of(operation, &target) {
                        failed.push((next, operation));
                    }
                }
            }
            if failed.is_empty() {
                return;
            }
            pending = failed;
        }
    }

    fn slot_of(&self, operation: &Operation<'_, RedisLease>) -> u16 {
        match operation {
            Operation::Acquire(it) => slot(&self.key(it.request)),
            Operation::Renew(it) => slot(&it.lease.key),
            Operation::Release(it) => slot(&it.lease.key),
        }
    }

    /// Returns the operations of each node together; last those of the node that failed last, which may hang.
    fn by_target<'a, 'b>(
        &self,
        operations: Vec<(Target, &'a mut Operation<'b, RedisLease>)>,
    ) -> Vec<(Target, Vec<&'a mut Operation<'b, RedisLease>>)> {
        let mut groups: Vec<(Target, Vec<_>)> = Vec::new();
        for (target, operation) in operations {
            match groups.iter_mut().find(|(it, _)| *it == target) {
                Some((_, group)) => group.push(operation),
                None => groups.push((target, vec![operation])),
            }
        }
        if groups.len() > 1 {
            groups.sort_by_key(|(target, _)| self.map.is_suspect(target.endpoint()));
        }
        groups
    }

    fn run_at(&self, target: &Target, operations: &mut [&mut Operation<'_, RedisLease>]) {
        let store = match self.store(target.endpoint()) {
            Ok(store) => store,
            Err(error) => {
                operations.iter_mut().for_each(|it| it.fail(error.clone()));
                return;
            }
        };
        if matches!(target, Target::Next(_)) {
            operations.iter_mut().for_each(|it| ask_next(&store, it));
            return;
        }
        let mut asked: Vec<_> = operations.iter_mut().map(|it| reborrow(it)).collect();
        batch(&store, &mut asked);
        // After a fail-over a node has leases that it did not grant.
        store.listener.note_grant();
        let answers: Vec<_> = asked.into_iter().map(Answer::of).collect();
        for (operation, answer) in operations.iter_mut().zip(answers) {
            answer.give_to(operation);
        }
    }

    /// Returns the node to try next, if the operation has failed and nothing came of it.
    fn further_of(&self, operation: &Operation<'_, RedisLease>, tried: &Target) -> Option<Target> {
        let until = operation.deadline();
        let error = match operation {
            Operation::Acquire(it) => it.answer.as_ref()?.as_ref().err()?.clone(),
            Operation::Release(it) => it.answer.as_ref()?.as_ref().err()?.clone(),
            // A lease that is renewed twice is none the worse.
            Operation::Renew(it) => match it.answer.as_ref()?.as_ref().err()? {
                error if error.kind() == ErrorKind::Unknown => {
                    error.clone().with_kind(ErrorKind::Unavailable)
                }
                error => error.clone(),
            },
        };
        let next = self.further(self.slot_of(operation), tried, Some(&error), until)?;
        let is_attempt = matches!(operation, Operation::Acquire(_));
        // An attempt needs two keys, which may be at two nodes.
        (!is_attempt || matches!(next, Target::Owner(_))).then_some(next)
    }
}

/// Returns the same operation without an answer.
fn reborrow<'a>(operation: &'a mut Operation<'_, RedisLease>) -> Operation<'a, RedisLease> {
    match operation {
        Operation::Acquire(it) => Operation::Acquire(AttemptRequest {
            request: it.request,
            deadline: it.deadline,
            answer: None,
        }),
        Operation::Renew(it) => Operation::Renew(RenewRequest {
            lease: it.lease,
            ttl: it.ttl,
            deadline: it.deadline,
            answer: None,
        }),
        Operation::Release(it) => Operation::Release(ReleaseRequest {
            lease: it.lease,
            deadline: it.deadline,
            answer: None,
        }),
    }
}

/// The answer of an operation.
enum Answer {
    Acquire(Option<Result<Option<Grant<RedisLease>>, Error>>),
    Renew(Option<Result<Renewal, Error>>),
    Release(Option<Result<Released, Error>>),
}

impl Answer {
    fn of(operation: Operation<'_, RedisLease>) -> Self {
        match operation {
            Operation::Acquire(it) => Self::Acquire(it.answer),
            Operation::Renew(it) => Self::Renew(it.answer),
            Operation::Release(it) => Self::Release(it.answer),
        }
    }

    fn give_to(self, operation: &mut Operation<'_, RedisLease>) {
        match (self, operation) {
            (Self::Acquire(answer), Operation::Acquire(it)) => it.answer = answer,
            (Self::Renew(answer), Operation::Renew(it)) => it.answer = answer,
            (Self::Release(answer), Operation::Release(it)) => it.answer = answer,
            _ => {}
        }
    }
}

/// Carries out an operation on the node that takes over the slot of its lease.
fn ask_next(store: &Store, operation: &mut Operation<'_, RedisLease>) {
    match operation {
        Operation::Acquire(_) => {}
        Operation::Renew(it) => {
            let (args, ttl) = (&it.lease.text, millis(it.ttl).to_string());
            let held = store.ask_next(&RENEW, &it.lease.key, &[args, &ttl], it.deadline);
            it.answer = Some(held.map(renewal));
        }
        Operation::Release(it) => {
            let held = store.ask_next(&RELEASE, &it.lease.key, &[&it.lease.text], it.deadline);
            it.answer = Some(held.map(released));
        }
    }
}
