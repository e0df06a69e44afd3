//! Operations of many callers. Operations of the same node are sent together, in one round trip.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Error, HostInstant, Operation, Released, Renewal, SentRelease, process_id,
};
use lockkeeper_remote::{Failure, PooledConn, senseless};

use super::Locks;
use super::call::{Answer, Call, Inspected, State};
use super::exchange::{self, Way};
use crate::connection::Connection;
use crate::topology::Topology;
use crate::topology::node::Node;
use crate::wire::keys::NamedKey;
use crate::wire::lease::{RedisLease, owner};

/// The largest number of nodes to which a request is redirected. It ends the loop of two nodes that redirect to
/// each other.
pub(super) const MAX_NODES: usize = 5;

/// Calls that are sent to a node together.
struct Group<'b, 'a> {
    node: Arc<Node>,
    way: Way,
    /// The connection on which the first of them was sent before.
    sent: Option<PooledConn<Connection>>,
    calls: Vec<&'b mut Call<'a>>,
}

/// A release that was sent, and the connection on which its reply comes.
struct Sent {
    node: Arc<Node>,
    connection: PooledConn<Connection>,
    /// The process that sent it. A forked child must not read the reply.
    process: u32,
}

impl Locks {
    /// Carries out all operations, and answers each.
    pub(crate) fn batch(&self, operations: &mut [Operation<'_, RedisLease>]) {
        let sent = operations.first_mut().and_then(Operation::take_sent);
        let is_sent = sent.is_some();
        let calls = operations.iter().enumerate();
        let calls = calls.map(|(at, operation)| match operation {
            Operation::Release(it) if is_sent && at == 0 => {
                Call::sent_release(it.lease, it.deadline)
            }
            Operation::Acquire(it) => self.attempt(it.request, it.deadline),
            Operation::Renew(it) => Call::renew(it.lease, it.ttl, it.deadline),
            Operation::Release(it) => {
                let until = it.deadline.min(self.longest_release());
                Call::release(&*it.lease.key, &*it.lease.text, until)
            }
        });
        let mut calls: Vec<_> = calls.collect();
        self.run(&mut calls, sent.and_then(SentRelease::into_inner));
        let answers: Vec<_> = calls.iter_mut().map(Call::answer).collect();
        for (operation, answer) in operations.iter_mut().zip(answers) {
            match (operation, answer.map_err(Failure::into_error)) {
                (Operation::Acquire(it), Ok(Answer::Granted(grant))) => {
                    it.answer = Some(Ok(Some(grant)));
                }
                (Operation::Acquire(it), Ok(Answer::Busy { .. })) => it.answer = Some(Ok(None)),
                (Operation::Renew(it), Ok(Answer::Held(true))) => {
                    it.answer = Some(Ok(Renewal::Renewed));
                }
                (Operation::Renew(it), Ok(Answer::Held(false))) => {
                    it.answer = Some(Ok(Renewal::Lost));
                }
                (Operation::Release(it), Ok(Answer::Held(true))) => {
                    it.answer = Some(Ok(Released::Done));
                }
                (Operation::Release(it), Ok(Answer::Held(false))) => {
                    it.answer = Some(Ok(Released::AlreadyLost));
                }
                (operation, Ok(_)) => operation.fail(senseless()),
                (operation, Err(error)) => operation.fail(error),
            }
        }
    }

    /// Returns the part of the store that keeps the name.
    pub(crate) fn part(&self, request: &AcquireRequest<'_>) -> usize {
        match &self.topology {
            Topology::OneServer(_) => 0,
            Topology::Cluster(_) => self.topology.part(&self.key(request)),
        }
    }

    /// Returns an attempt of this request. The server grants nothing after `deadline`.
    pub(super) fn attempt<'a>(
        &'a self,
        request: &'a AcquireRequest<'a>,
        deadline: HostInstant,
    ) -> Call<'a> {
        let key = self.key(request);
        let part = self.topology.part(&key);
        Call::attempt(&self.keys, (key, part), request, deadline)
    }

    pub(super) fn key(&self, request: &AcquireRequest<'_>) -> String {
        let of_permits = request.mode().is_permit();
        self.keys.lock(request.name().as_str(), of_permits)
    }

    /// Releases what an attempt of this request may have been granted.
    pub(crate) fn abandon(&self, request: &AcquireRequest<'_>) {
        let _ = self.release(&self.key(request), &owner(request), request.end());
    }

    /// Releases a lease, and returns whether it was live. If the reply to the grant was lost, the lease is found by its
    /// mode and owner.
    pub(crate) fn release(&self, key: &str, text: &str, until: HostInstant) -> Result<bool, Error> {
        let mut calls = [Call::release(key, text, until)];
        self.run(&mut calls, None);
        let [mut call] = calls;
        match call.answer().map_err(Failure::into_error)? {
            Answer::Held(was_held) => Ok(was_held),
            _ => Err(senseless()),
        }
    }

    /// Returns the leases of each key, wherever it is.
    pub(crate) fn inspect(
        &self,
        keys: &[NamedKey],
        deadline: HostInstant,
    ) -> Vec<Result<Inspected, Error>> {
        let calls = keys
            .iter()
            .map(|key| Call::inspect(self.keys.of(key), deadline));
        let mut calls: Vec<_> = calls.collect();
        self.run(&mut calls, None);
        let answers = calls.iter_mut().map(|call| match call.answer() {
            Ok(Answer::Inspected(inspected)) => Ok(inspected),
            Ok(_) => Err(senseless()),
            Err(failure) => Err(failure.into_error()),
        });
        answers.collect()
    }

    /// Returns the end of a release that begins now: a server that is gone is not waited for as long as the lease would
    /// last.
    fn longest_release(&self) -> HostInstant {
        self.clock.now() + 2 * self.options.remote.response_timeout
    }

    /// Sends a release without waiting for its reply. Returns what its batch needs; `None` if it was not sent.
    pub(crate) fn send_release(&self, lease: &RedisLease) -> Option<SentRelease> {
        // Requests for the name that go to another part do not go behind it.
        if self.topology.part(&lease.key) != lease.part {
            return None;
        }
        let node = self.topology.known_owner(&lease.key)?;
        let mut call = Call::release(&*lease.key, &*lease.text, HostInstant::NEVER);
        let loads = !node.knows_release.load(Ordering::Relaxed);
        let command = call.command(&node, self.clock.now(), Duration::ZERO, loads);
        Some(SentRelease::new(Sent {
            connection: node.send_release(&command)?,
            node,
            process: process_id(),
        }))
    }

    /// Runs the calls, each on the node that owns its slot, or that another node names. If the first one was sent before,
    /// those to the same node go behind it on that connection.
    fn run(&self, calls: &mut [Call<'_>], sent: Option<Sent>) {
        let mut groups = Vec::new();
        let mut calls = calls.iter_mut();
        if let Some(Sent {
            node,
            mut connection,
            process,
        }) = sent
            && let Some(first) = calls.next()
        {
            if process != process_id() {
                connection.connection = None;
            }
            groups.push(Group {
                node,
                way: Way::Owner,
                sent: Some(connection),
                calls: vec![first],
            });
        }
        for call in calls {
            match self.topology.owner(&call.key, call.deadline, None) {
                Ok(node) => add(&mut groups, node, Way::Owner, call),
                Err(error) => call.fail(Failure::NotSent(error)),
            }
        }
        for _ in 0..MAX_NODES {
            let mut further = Vec::new();
            for group in self.in_order(groups) {
                let Group {
                    node,
                    way,
                    sent,
                    mut calls,
                } = group;
                let latest = calls.iter().map(|call| call.deadline).max();
                let latest = latest.unwrap_or_else(|| self.clock.now());
                // A call comes from another node with its refusal.
                for call in calls.iter_mut().filter(|call| !call.is_sent()) {
                    call.state = State::Unanswered;
                }
                exchange::run_on_node(&node, &mut calls, way, sent, latest, None);
                let now = self.clock.now();
                let repeated = calls.iter_mut().map(|call| call.repeat_renewal(now));
                if repeated.fold(false, |any, repeats| any | repeats) {
                    exchange::run_on_node(&node, &mut calls, way, None, latest, None);
                }
                // After a fail-over a node of a cluster has leases that it did not grant.
                if calls.iter().any(|call| call.is_live()) {
                    node.listener.note_grant();
                }
                for call in calls {
                    if let Some((next, way)) = self.further(call, &node, way) {
                        add(&mut further, next, way, call);
                    }
                }
            }
            if further.is_empty() {
                return;
            }
            groups = further;
        }
    }

    /// Returns the groups, last those of the nodes that failed last, which may hang.
    fn in_order<'b, 'a>(&self, mut groups: Vec<Group<'b, 'a>>) -> Vec<Group<'b, 'a>> {
        if let (Topology::Cluster(cluster), 2..) = (&self.topology, groups.len()) {
            groups.sort_by_key(|group| cluster.map.rank(&group.node.endpoint));
        }
        groups
    }

    /// Returns the node to try after this one, if the call has failed there and may be sent again.
    fn further(&self, call: &mut Call<'_>, tried: &Node, way: Way) -> Option<(Arc<Node>, Way)> {
        if !call.may_go_on() {
            return None;
        }
        // An attempt needs two keys, which may be at two nodes.
        if let (Some(next), Way::Owner, false) = (call.next.take(), way, call.is_attempt()) {
            return Some((self.topology.node_at(&next).ok()?, Way::Next));
        }
        let owner = self.topology.owner(&call.key, call.deadline, None).ok()?;
        (owner.endpoint != tried.endpoint || way == Way::Next).then_some((owner, Way::Owner))
    }
}

/// Adds a call to those that go to a node.
fn add<'b, 'a>(groups: &mut Vec<Group<'b, 'a>>, node: Arc<Node>, way: Way, call: &'b mut Call<'a>) {
    let is_same = |it: &&mut Group<'b, 'a>| it.way == way && it.node.endpoint == node.endpoint;
    match groups.iter_mut().find(is_same) {
        Some(group) => group.calls.push(call),
        None => groups.push(Group {
            node,
            way,
            sent: None,
            calls: vec![call],
        }),
    }
}
