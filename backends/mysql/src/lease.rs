//! A grant: renewing it, one or many, and giving it back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Error, HostInstant, Proof, ProofValue, Released, RenewRequest, Renewal};
use lockkeeper_remote::{Failure, LAST_ATTEMPT as ATTEMPT};

use crate::acquire::no_thread;
use crate::connection::Connection;
use crate::detached;
use crate::failure::slow;
use crate::names::EncodedName;
use crate::session::Session;
use crate::statements::{self, idle_seconds};
use crate::store::Store;

/// A grant of a [`MySqlProvider`](crate::MySqlProvider).
pub struct MySqlLease {
    session: Arc<Session>,
    name: EncodedName,
    epoch: u64,
}

impl fmt::Debug for MySqlLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlLease")
            .field("session", &self.session.id)
            .field("name", &self.name)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl MySqlLease {
    pub(crate) fn new(session: &Arc<Session>, name: &EncodedName, epoch: u64) -> Self {
        Self {
            session: Arc::clone(session),
            name: name.clone(),
            epoch,
        }
    }

    /// Frees the name on a session that holds others', too: cut short, the call would leave it in
    /// doubt. `None`: no answer yet, and it goes on alone.
    fn free_shared(&self, store: &Arc<Store>, left: Duration) -> Option<Result<bool, Failure>> {
        let limit = Duration::from_secs(self.session.idle_seconds);
        let call = {
            let (store, session) = (Arc::clone(store), Arc::clone(&self.session));
            let name = self.name.clone();
            move || {
                store.ask(&session, limit, |connection, _| {
                    connection.release(&name, limit)
                })
            }
        };
        let late = {
            let (store, session) = (Arc::clone(store), Arc::clone(&self.session));
            let name = self.name.clone();
            move |freed| store.given_back(&session, &name, &freed)
        };
        match detached::start(call, late) {
            Some(call) => call.wait(detached::after(left)),
            None => Some(Err(Failure::NotSent(no_thread()))),
        }
    }

    /// What the server's word on a renewal means for this lease.
    fn renewed(&self, store: &Store, holds: bool, ttl: Duration) -> Renewal {
        let until = store.clock.now() + ttl;
        if holds && self.session.extend(&self.name, self.epoch, until) {
            return Renewal::Renewed;
        }
        if !holds {
            store.leave(&self.session, &self.name);
        }
        Renewal::Lost
    }

    pub(crate) fn release(
        &self,
        store: &Arc<Store>,
        deadline: HostInstant,
    ) -> Result<Released, Error> {
        let now = store.clock.now();
        let Some((lasted, is_shared)) = self.session.end(&self.name, self.epoch, now) else {
            return Ok(Released::AlreadyLost);
        };
        let left = deadline.saturating_since(now).max(ATTEMPT);
        let freed = if is_shared {
            self.free_shared(store, left)
        } else {
            // The connection holds no other name, so giving it up costs no other lease.
            let left = left.min(store.options.remote.response_timeout);
            Some(store.ask(&self.session, left, |connection, limit| {
                connection.release(&self.name, limit)
            }))
        };
        let Some(freed) = freed else {
            return Err(slow());
        };
        store.given_back(&self.session, &self.name, &freed);
        match freed {
            Ok(true) if lasted => Ok(Released::Done),
            Ok(_) | Err(Failure::Closed(_)) => Ok(Released::AlreadyLost),
            Err(failure) => Err(failure.into_error()),
        }
    }

    pub(crate) fn proof(&self) -> Proof {
        let (name, session) = (&self.name, self.session.id);
        Proof {
            sql: statements::proof(name, session),
            statement: statements::PROOF,
            params: vec![
                ProofValue::Text(name.to_string()),
                ProofValue::Integer(session.id.cast_signed()),
                ProofValue::Integer(session.start.cast_signed()),
            ],
        }
    }
}

/// The leases of a batch that are on one session.
struct Group {
    session: Arc<Session>,
    names: Vec<EncodedName>,
    /// Where in the batch each of them is.
    places: Vec<usize>,
    deadline: HostInstant,
    longest: Duration,
}

impl Group {
    /// Asks for all of them at once. It keeps the session from being idle, too.
    ///
    /// Cut short, the call would leave the session in doubt and cost all names on it, so it may take
    /// as long as any lease there lasts.
    fn ask(&self, store: &Store) -> Result<Vec<bool>, Failure> {
        let limit = Duration::from_secs(self.session.idle_seconds);
        store.ask(&self.session, limit, |connection, _| {
            self.hold(store, connection, limit)
        })
    }

    /// Asks on the caller's thread, within `left`, where no other name is on the session.
    fn ask_alone(&self, store: &Store, left: Duration) -> Option<Result<Vec<bool>, Failure>> {
        store.ask_alone(&self.session, left, |connection, limit| {
            self.hold(store, connection, limit)
        })
    }

    fn hold(
        &self,
        store: &Store,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<Vec<bool>, Failure> {
        let seconds = idle_seconds(self.longest);
        if seconds > self.session.idle_seconds {
            self.session.spend();
            connection.set_idle(store.flavour, seconds, limit)?;
        }
        connection.holds(&self.names, limit)
    }
}

/// Renews all of them, each session's in one round trip.
pub(crate) fn renew_batch(store: &Arc<Store>, batch: &mut [RenewRequest<'_, MySqlLease>]) {
    let now = store.clock.now();
    let mut groups: Vec<Group> = Vec::new();
    for (place, renew) in batch.iter_mut().enumerate() {
        let lease = &*renew.lease;
        if !lease.session.lasts(&lease.name, lease.epoch, now) {
            renew.answer = Some(Ok(Renewal::Lost));
            continue;
        }
        let known = groups
            .iter_mut()
            .find(|group| Arc::ptr_eq(&group.session, &lease.session));
        let name = lease.name.clone();
        if let Some(group) = known {
            group.names.push(name);
            group.places.push(place);
            group.deadline = group.deadline.min(renew.deadline);
            group.longest = group.longest.max(renew.ttl);
        } else {
            groups.push(Group {
                session: Arc::clone(&lease.session),
                names: vec![name],
                places: vec![place],
                deadline: renew.deadline,
                longest: renew.ttl,
            });
        }
    }
    let left = |group: &Group| group.deadline.saturating_since(now).max(ATTEMPT);
    if let [group] = groups.as_slice()
        && let Some(answer) = group.ask_alone(store, left(group))
    {
        return tell(store, batch, group, answer);
    }
    // The answer of the only one is waited for until its deadline. Of several, none waits for
    // another: the call of one that does not answer soon goes on alone.
    let soon = (groups.len() > 1).then(|| detached::after(store.options.remote.response_timeout));
    let calls: Vec<_> = groups
        .into_iter()
        .map(Arc::new)
        .map(|group| {
            let (store, theirs) = (Arc::clone(store), Arc::clone(&group));
            let call = detached::start(move || theirs.ask(&store), drop);
            (group, call)
        })
        .collect();
    for (group, call) in calls {
        let deadline = detached::after(left(&group));
        let patience = soon.map_or(deadline, |soon| soon.min(deadline));
        let answer = match call {
            None => Err(Failure::NotSent(no_thread())),
            Some(call) => call
                .wait(patience)
                .unwrap_or_else(|| Err(Failure::Unanswered(slow()))),
        };
        tell(store, batch, &group, answer);
    }
}

fn tell(
    store: &Arc<Store>,
    batch: &mut [RenewRequest<'_, MySqlLease>],
    group: &Group,
    answer: Result<Vec<bool>, Failure>,
) {
    let (holds, error) = match answer {
        Ok(holds) => (holds, None),
        // The session is gone, and its names with it: that is the server's word.
        Err(Failure::Closed(_)) => (Vec::new(), None),
        Err(failure) => (Vec::new(), Some(failure.into_error())),
    };
    for (at, place) in group.places.iter().enumerate() {
        let Some(renew) = batch.get_mut(*place) else {
            continue;
        };
        renew.answer = match &error {
            Some(error) => Some(Err(error.clone())),
            None => {
                let holds = holds.get(at).copied().unwrap_or(false);
                Some(Ok(renew.lease.renewed(store, holds, renew.ttl)))
            }
        };
    }
}
