//! A grant: renewing it, one or many, and giving it back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, HostInstant, Proof, ProofValue, Released, RenewRequest, Renewal};
use lockkeeper_remote::{Failure, LAST_ATTEMPT};

use crate::connection::Connection;
use crate::dialect::Dialect;
use crate::failure::unknown;
use crate::names::EncodedName;
use crate::sessions::{Session, idle_seconds};
use crate::statements::{self, SessionId};
use crate::store::Store;

/// A grant of a [`MySqlProvider`](crate::MySqlProvider).
#[derive(Debug)]
pub struct MySqlLease {
    pub(crate) session: Arc<Session>,
    pub(crate) name: EncodedName,
    pub(crate) epoch: u64,
}

impl MySqlLease {
    pub(crate) fn release(&self, store: &Store, deadline: HostInstant) -> Result<Released, Error> {
        let now = store.clock.now();
        let Some(lasted) = self
            .session
            .state()
            .begin_release(&self.name, self.epoch, now)
        else {
            return Ok(Released::AlreadyLost);
        };
        let left = deadline.saturating_since(now).max(LAST_ATTEMPT);
        match self.free(store, left) {
            Ok(true) if lasted => Ok(Released::Done),
            Ok(_) | Err(Failure::Closed(_)) => Ok(Released::AlreadyLost),
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Frees the name within `left`. If the session has other names, the call continues on a thread of its
    /// own: cut short, it would leave the session in doubt.
    fn free(&self, store: &Store, left: Duration) -> Result<bool, Failure> {
        let (sessions, session, name) = (&store.sessions, &self.session, &self.name);
        let limit = left.min(store.remote.response_timeout);
        let release = |connection: &mut Connection| connection.release(name);
        if let Some(freed) = session.run_alone(limit, release) {
            return sessions.released(session, name, freed);
        }
        let freed = sessions.start_release(session, vec![name.clone()])?;
        freed.recv_timeout(left).unwrap_or_else(|_| Err(slow()))
    }

    /// Returns what the server's reply on a renewal means for this lease.
    fn renewed(&self, store: &Store, is_held: bool, ttl: Duration) -> Renewal {
        let until = store.clock.now() + ttl;
        if is_held && self.session.state().extend(&self.name, self.epoch, until) {
            return Renewal::Renewed;
        }
        if !is_held {
            self.session.leave(&self.name);
        }
        Renewal::Lost
    }

    pub(crate) fn proof(&self, dialect: Dialect) -> Proof {
        let SessionId { id, start } = self.session.id;
        let values = [
            start.to_string(),
            format!("'{}'", self.name),
            id.to_string(),
        ];
        let set = |sql: String, value: &String| sql.replacen('?', value, 1);
        Proof {
            dialect: dialect.name(),
            sql: values.iter().fold(statements::PROOF.to_owned(), set),
            statement: statements::PROOF,
            params: vec![
                ProofValue::Integer(start.cast_signed()),
                ProofValue::Text(self.name.to_string()),
                ProofValue::Integer(id.cast_signed()),
            ],
        }
    }
}

/// The renewals of a batch that are about one session.
struct Group<'a, 'b> {
    session: Arc<Session>,
    requests: Vec<&'a mut RenewRequest<'b, MySqlLease>>,
}

impl Group<'_, '_> {
    fn left(&self, now: HostInstant) -> Duration {
        let deadlines = self.requests.iter().map(|request| request.deadline);
        let deadline = deadlines.min().unwrap_or(now);
        deadline.saturating_since(now).max(LAST_ATTEMPT)
    }

    /// Returns the call that checks all names at once, and keeps the session from being idle, too.
    fn call(&self) -> impl FnOnce(&mut Connection) -> Result<Vec<bool>, Failure> + use<> {
        let requests = self.requests.iter();
        let names: Vec<_> = requests.map(|request| request.lease.name.clone()).collect();
        let ttls = self.requests.iter().map(|request| request.ttl);
        let seconds = idle_seconds(ttls.max().unwrap_or_default());
        let session = Arc::clone(&self.session);
        move |connection| {
            if seconds > session.idle_seconds {
                session.state().is_spent = true;
                connection.set_idle(seconds)?;
            }
            connection.holds(&names)
        }
    }

    fn answer(self, store: &Store, reply: Result<Vec<bool>, Failure>) {
        let held = match reply {
            Ok(held) => Ok(held),
            // The session has ended, and the server has freed its names.
            Err(Failure::Closed(_)) => Ok(vec![false; self.requests.len()]),
            Err(failure) => Err(failure.into_error()),
        };
        for (at, request) in self.requests.into_iter().enumerate() {
            let is_held = held.as_ref().map(|held| held.get(at) == Some(&true));
            let renewed = |is_held| request.lease.renewed(store, is_held, request.ttl);
            request.answer = Some(is_held.map(renewed).map_err(Error::clone));
        }
    }
}

/// Renews all leases of a batch, those of each session in one round trip.
///
/// A call that is cut short would leave its session in doubt and cost all names on it. So it is made on
/// the caller's thread only if there is one lease. Other calls may take as long as a lease lasts, each on a
/// thread of its own; of several, none waits for another.
pub(crate) fn renew_batch(store: &Store, batch: &mut [RenewRequest<'_, MySqlLease>]) {
    let now = store.clock.now();
    let mut groups: Vec<Group<'_, '_>> = Vec::new();
    for request in batch {
        let lease = &*request.lease;
        if !lease.session.state().lasts(&lease.name, lease.epoch, now) {
            request.answer = Some(Ok(Renewal::Lost));
            continue;
        }
        let same = |group: &&mut Group<'_, '_>| Arc::ptr_eq(&group.session, &lease.session);
        match groups.iter_mut().find(same) {
            Some(group) => group.requests.push(request),
            None => groups.push(Group {
                session: Arc::clone(&lease.session),
                requests: vec![request],
            }),
        }
    }
    let alone = match groups.as_slice() {
        [group] => group.session.run_alone(group.left(now), group.call()),
        _ => None,
    };
    if let Some(reply) = alone {
        return groups.pop().map_or((), |group| group.answer(store, reply));
    }
    let began = Instant::now();
    let most = if groups.len() > 1 {
        store.remote.response_timeout
    } else {
        Duration::MAX
    };
    let calls: Vec<_> = groups
        .iter()
        .map(|group| {
            let (session, call) = (Arc::clone(&group.session), group.call());
            store.sessions.calls.start(move |reply| {
                let _ = reply.send(session.run(session.longest_call(), call));
            })
        })
        .collect();
    for (group, call) in groups.into_iter().zip(calls) {
        let left = group.left(now).min(most).saturating_sub(began.elapsed());
        let reply = call.and_then(|reply| reply.recv_timeout(left).unwrap_or_else(|_| Err(slow())));
        group.answer(store, reply);
    }
}

fn slow() -> Failure {
    unknown("no reply yet; the request is still in flight")
}
