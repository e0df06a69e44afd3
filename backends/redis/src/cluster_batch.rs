//! Operations of many callers on the nodes of a cluster.

use lockkeeper_core::{
    AttemptRequest, Error, ErrorKind, Grant, Operation, ReleaseRequest, Released, RenewRequest,
    Renewal,
};

use crate::batch::{batch, released, renewal};
use crate::bucket_keys::slot;
use crate::cluster::{Cluster, MAX_NODES, Target};
use crate::lease::{RedisLease, millis};
use crate::scripts::{RELEASE, RENEW};
use crate::store::Store;

impl Cluster {
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

    /// Returns the operations of each node together; last those of the nodes that failed last, which may hang.
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
            groups.sort_by_key(|(target, _)| self.map.rank(target.endpoint()));
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
        if asked.iter().any(|it| matches!(it, Operation::Renew(_))) {
            // After a fail-over a node has leases that it did not grant.
            store.listener.note_grant();
        }
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
