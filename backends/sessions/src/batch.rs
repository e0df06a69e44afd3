//! Several operations at once: those of each session in one statement, with an answer for each.
//!
//! A call that is cut short leaves its session in doubt and costs all names on it. So the calls are made on
//! threads of their own, side by side, and may take longer than the batch. None waits for another.

use std::collections::HashSet;
use std::mem::{replace, take};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    AttemptRequest, CancelToken, Error, HostInstant, Operation, ReleaseRequest, Released,
    RenewRequest, Renewal,
};
use lockkeeper_remote::{Failure, Found, PooledConn, no_time, unknown};

use crate::connection::{SessionConnection, SessionName};
use crate::detached::Pending;
use crate::lease::SessionLease;
use crate::requests::{Replies, Requests};
use crate::session::Session;
use crate::store::{Made, Sent, SessionStore};

/// An attempt of the batch.
struct Try<'a, 'b, C: SessionConnection> {
    name: C::Name,
    request: &'a mut AttemptRequest<'b, SessionLease<C>>,
    /// Whether no connection could be opened for it: then only a session takes it.
    is_refused: bool,
    /// Whether it is made again if it gets no reply: nothing else of the batch waits for that.
    is_alone: bool,
    /// Whether a connection on which it was made has ended or did not reply: it does not wait for another one twice.
    is_cut: bool,
}

/// A release that was begun.
struct Freeing<'a, 'b, C: SessionConnection> {
    request: &'a mut ReleaseRequest<'b, SessionLease<C>>,
    /// Whether the lease lasted until then.
    lasted: bool,
}

/// The operations of a batch that are about one session.
struct Group<'a, 'b, C: SessionConnection> {
    session: Arc<Session<C>>,
    /// A release that was sent before, and whose reply comes first.
    sent: Option<Freeing<'a, 'b, C>>,
    releases: Vec<Freeing<'a, 'b, C>>,
    tries: Vec<Try<'a, 'b, C>>,
    renewals: Vec<&'a mut RenewRequest<'b, SessionLease<C>>>,
}

/// Attempts of one ttl on a connection without names.
struct NewGroup<'a, 'b, C: SessionConnection> {
    slot: PooledConn<C>,
    idle: Duration,
    names: HashSet<C::Name>,
    tries: Vec<Try<'a, 'b, C>>,
}

/// The limits of a batch.
struct Limits<'a> {
    /// How long an attempt waits for a connection.
    patience: Duration,
    cancel: Option<&'a CancelToken>,
    /// The end of the caller's wait.
    until: HostInstant,
    /// The latest deadline of the operations.
    deadline: HostInstant,
}

impl<C: SessionConnection> SessionStore<C> {
    /// Carries out several operations: see [`Backend::batch`](lockkeeper_core::Backend::batch).
    pub fn batch(&self, operations: &mut [Operation<'_, SessionLease<C>>]) {
        self.carry_out(operations, Duration::ZERO, None);
    }

    /// Carries out several operations. An attempt waits for a connection within `patience`, and for its reply until a cancel.
    pub(crate) fn carry_out(
        &self,
        operations: &mut [Operation<'_, SessionLease<C>>],
        patience: Duration,
        cancel: Option<&CancelToken>,
    ) {
        let now = self.clock.now();
        let deadline = operations.iter().map(Operation::deadline).max();
        let deadline = deadline.unwrap_or(now);
        if deadline <= now {
            let failed = |it: &mut Operation<'_, _>| it.fail(no_time().into_error());
            return operations.iter_mut().for_each(failed);
        }
        let is_alone = matches!(operations, [Operation::Acquire(_)]);
        let until = match is_alone {
            true => deadline,
            false => deadline.min(now + self.options.response_timeout),
        };
        let limits = Limits {
            until,
            deadline,
            patience,
            cancel,
        };
        let (mut groups, mut tries, mut unanswered) = (Vec::new(), Vec::new(), Vec::new());
        let mut owing = None;
        for operation in operations {
            match operation {
                Operation::Acquire(request) => tries.push(Try {
                    name: SessionName::requested(
                        &self.namespace,
                        request.request.name().as_str(),
                        request.request.mode(),
                    ),
                    request,
                    is_refused: false,
                    is_alone,
                    is_cut: false,
                }),
                Operation::Renew(request) => {
                    let session = Arc::clone(&request.lease.session);
                    Group::add(&mut groups, &session, |group| group.renewals.push(request));
                }
                Operation::Release(request) => {
                    if Sent::<C>::take(request.sent.take()) {
                        owing = Some(Group::owing(request));
                        continue;
                    }
                    if request.lease.is_unanswered() {
                        unanswered.push(request);
                        continue;
                    }
                    let session = Arc::clone(&request.lease.session);
                    let lasted = false;
                    let freeing = Freeing { request, lasted };
                    Group::add(&mut groups, &session, |group| group.releases.push(freeing));
                }
            }
        }
        if let Some(mut group) = owing {
            // What asks for the same name must be behind the release, and the others are sent all the sooner.
            tries = group.take_behind(tries);
            tries.extend(run(self, vec![group], Vec::new(), &limits));
        }
        let mut retries = self.options.pool_size;
        loop {
            let new = place(self, &mut groups, tries, &limits);
            tries = run(self, groups, new, &limits);
            let is_cancelled = cancel.is_some_and(CancelToken::is_cancelled);
            if tries.is_empty() || retries == 0 || self.clock.now() >= until || is_cancelled {
                break;
            }
            // The idle connections are as old as one that was cut.
            if tries.iter().any(|it| it.is_cut) {
                self.pool.close_idle();
            }
            retries -= 1;
            groups = Vec::new();
        }
        // Last, since each of them may wait for a connection.
        for release in unanswered {
            release.answer = Some(resolve_release(self, release.lease, deadline));
        }
    }
}

/// Adds each attempt to a session that takes its name. Returns the others, on free connections. An attempt for
/// which neither is there gets its answer: a batch does not wait for a connection.
///
/// A session with a call under way gets attempts only if enough connections hold names, or none is free.
fn place<'a, 'b, C: SessionConnection>(
    store: &SessionStore<C>,
    groups: &mut Vec<Group<'a, 'b, C>>,
    tries: Vec<Try<'a, 'b, C>>,
    limits: &Limits<'_>,
) -> Vec<NewGroup<'a, 'b, C>> {
    let shares = store.shares();
    let mut new: Vec<NewGroup<'_, '_, C>> = Vec::new();
    for one in tries {
        let idle = C::idle(one.request.request.ttl());
        let enter = |or_busy| store.sessions.enter(&one.name, idle, or_busy);
        let takes = |group: &&mut Group<'_, '_, C>| {
            !group.session.is_busy()
                && group.session.idle == idle
                && group.session.state().enter(&one.name)
        };
        if let Some(group) = groups.iter_mut().find(takes) {
            group.tries.push(one);
            continue;
        }
        // A lone attempt takes a connection of its own while few connections hold names: on it, no name of others depends
        // on the call.
        let is_apart = one.is_alone && !shares && !one.is_refused;
        if !is_apart && let Some(session) = enter(shares || one.is_refused) {
            Group::add(groups, &session, |group| group.tries.push(one));
            continue;
        }
        if one.is_refused {
            continue;
        }
        // A name twice in one statement would be granted twice.
        let takes = |group: &mut NewGroup<'_, '_, C>| {
            group.idle == idle && group.names.insert(one.name.clone())
        };
        if let Some(group) = new.iter_mut().find_map(|it| takes(it).then_some(it)) {
            group.tries.push(one);
            continue;
        }
        let found = store
            .pool
            .checkout_or(limits.patience, limits.cancel, || enter(true));
        match found {
            Some(Found::Slot(slot)) => new.push(NewGroup {
                slot,
                idle,
                names: HashSet::from([one.name.clone()]),
                tries: vec![one],
            }),
            Some(Found::Other(session)) => {
                Group::add(groups, &session, |group| group.tries.push(one));
            }
            None => one.request.answer = Some(Err(store.exhausted().into_error())),
        }
    }
    new
}

/// Makes the calls of the groups at the same time, and answers the operations. Returns the attempts that may be
/// made again on another session.
fn run<'a, 'b, C: SessionConnection>(
    store: &SessionStore<C>,
    groups: Vec<Group<'a, 'b, C>>,
    new: Vec<NewGroup<'a, 'b, C>>,
    limits: &Limits<'_>,
) -> Vec<Try<'a, 'b, C>> {
    let now = store.clock.now();
    let is_only = groups.len() + new.len() == 1;
    let groups = groups.into_iter().filter_map(|mut group| {
        let requests = group.begin(now);
        let is_empty = requests.count() == 0;
        (!is_empty).then(|| (group.start(store, requests, limits, is_only), group))
    });
    let groups: Vec<_> = groups.collect();
    let mut again = Vec::new();
    for group in new {
        again.extend(group.run(store, limits));
    }
    let left = || limits.until.saturating_since(store.clock.now());
    for (call, group) in groups {
        again.extend(group.answer(store, call.reply(left(), limits.cancel), now));
    }
    again
}

impl<'a, 'b, C: SessionConnection> Group<'a, 'b, C> {
    /// Adds an operation to the group of its session, which may be a new one.
    fn add(groups: &mut Vec<Self>, session: &Arc<Session<C>>, add: impl FnOnce(&mut Self)) {
        let is_theirs = |group: &&mut Self| Arc::ptr_eq(&group.session, session);
        if let Some(group) = groups.iter_mut().find(is_theirs) {
            return add(group);
        }
        let mut group = Self::new(session);
        add(&mut group);
        groups.push(group);
    }

    fn new(session: &Arc<Session<C>>) -> Self {
        Self {
            session: Arc::clone(session),
            sent: None,
            releases: Vec::new(),
            tries: Vec::new(),
            renewals: Vec::new(),
        }
    }

    /// The group of a release that was sent before, while its lease lasted.
    fn owing(request: &'a mut ReleaseRequest<'b, SessionLease<C>>) -> Self {
        let mut group = Self::new(&request.lease.session);
        let lasted = true;
        group.sent = Some(Freeing { request, lasted });
        group
    }

    /// Adds the attempts that the session can make behind the release that was sent, and returns the others.
    fn take_behind(&mut self, tries: Vec<Try<'a, 'b, C>>) -> Vec<Try<'a, 'b, C>> {
        let Some(Freeing { request, .. }) = &self.sent else {
            return tries;
        };
        let mut state = self.session.state();
        let mut released = Some(&request.lease.name);
        let fits = |one: &Try<'_, '_, C>| {
            self.session.idle == C::idle(one.request.request.ttl())
                && state.enter_behind(&mut released, &one.name)
        };
        let (behind, others) = tries.into_iter().partition(fits);
        drop(state);
        self.tries = behind;
        others
    }

    /// Begins the releases, and returns what to ask. Leases that have ended get their answer.
    ///
    /// A session takes no names once its last one is released, so the attempts were entered before.
    fn begin(&mut self, now: HostInstant) -> Requests<C::Name> {
        let mut state = self.session.state();
        self.releases.retain_mut(|Freeing { request, lasted }| {
            let lease = &*request.lease;
            let begun = state.begin_release(&lease.name, lease.epoch, now);
            *lasted = begun.unwrap_or_default();
            if begun.is_none() {
                request.answer = Some(Ok(Released::AlreadyLost));
            }
            begun.is_some()
        });
        self.renewals.retain_mut(|request| {
            let lasts = state.lasts(&request.lease.name, request.lease.epoch, now);
            if !lasts {
                request.answer = Some(Ok(Renewal::Lost));
            }
            lasts
        });
        let ttl = self.renewals.iter().map(|request| request.ttl).max();
        let releases = self.releases.iter().map(|it| it.request.lease.name.clone());
        let checks = self.renewals.iter().map(|it| it.lease.name.clone());
        Requests {
            sent: self.sent.as_ref().map(|it| it.request.lease.name.clone()),
            releases: releases.collect(),
            attempts: self.tries.iter().map(|it| it.name.clone()).collect(),
            checks: checks.collect(),
            idle: ttl.map_or(Duration::ZERO, C::idle),
        }
    }

    /// Starts the call. This thread makes it if there is no other group, and no other name depends on the
    /// session. The renewal of a name may take as long as its lease lasts: cut short, it would lose the lease.
    fn start(
        &self,
        store: &SessionStore<C>,
        requests: Requests<C::Name>,
        limits: &Limits<'_>,
        is_only: bool,
    ) -> Pending<Replies> {
        if is_only
            && limits.cancel.is_none()
            && (requests.checks.is_empty() || requests.count() == 1)
        {
            let until = match requests.checks.is_empty() {
                true => limits.until,
                false => limits.deadline,
            };
            let left = || until.saturating_since(store.clock.now());
            if let Some(result) = store.sessions.call_alone(&self.session, &requests, left) {
                return Pending::Done(result);
            }
        }
        let left = limits.until.saturating_since(store.clock.now());
        store.sessions.start(&self.session, requests, left)
    }

    /// Answers all operations. Returns the attempts that may be made again.
    fn answer(
        self,
        store: &SessionStore<C>,
        reply: Result<Replies, Failure>,
        asked_at: HostInstant,
    ) -> Vec<Try<'a, 'b, C>> {
        let attempted = match reply {
            Ok(replies) => {
                for (freeing, was_held) in self.sent.into_iter().zip(replies.sent) {
                    freeing.answer(was_held.map_err(Failure::into_error));
                }
                let released = self.releases.into_iter().zip(replies.released);
                released.for_each(|(freeing, was_held)| freeing.answer(Ok(was_held)));
                for (request, is_held) in self.renewals.into_iter().zip(replies.held) {
                    request.answer = Some(Ok(renewed(store, request, is_held)));
                }
                Ok(Made {
                    session: self.session,
                    attempted: replies.attempted,
                    asked_at,
                })
            }
            Err(failure) => {
                // The session has ended, and the server has freed its names.
                let is_ended = matches!(failure, Failure::Closed(_));
                let is_held = || match is_ended {
                    true => Ok(false),
                    false => Err(failure.error().clone()),
                };
                let releases = self.sent.into_iter().chain(self.releases);
                releases.for_each(|freeing| freeing.answer(is_held()));
                for request in self.renewals {
                    let renewal = is_held().map(|is_held| renewed(store, request, is_held));
                    request.answer = Some(renewal);
                }
                Err(failure)
            }
        };
        Try::answer_all(self.tries, store, attempted).collect()
    }
}

impl<C: SessionConnection> Freeing<'_, '_, C> {
    fn answer(self, was_held: Result<bool, Error>) {
        let released = was_held.map(|was_held| match was_held && self.lasted {
            true => Released::Done,
            false => Released::AlreadyLost,
        });
        self.request.answer = Some(released);
    }
}

/// Asks on another connection what became of a release without a reply, whose session is closed as soon as no other lease
/// lasts on it.
fn resolve_release<C: SessionConnection>(
    store: &SessionStore<C>,
    lease: &SessionLease<C>,
    deadline: HostInstant,
) -> Result<Released, Error> {
    let holders = store.run_apart(deadline, |connection| connection.holders(&lease.name))?;
    let is_own = |holder: &C::Id| C::is_session(lease.session.id, *holder);
    match holders.iter().any(is_own) {
        false => Ok(Released::Done),
        true => {
            let text = "the server has not freed the lock yet, and ends the session that held it";
            Err(unknown(text).into_error())
        }
    }
}

/// Returns what the server's reply to a renewal means for the lease.
fn renewed<C: SessionConnection>(
    store: &SessionStore<C>,
    request: &RenewRequest<'_, SessionLease<C>>,
    is_held: bool,
) -> Renewal {
    let (until, lease) = (store.clock.now() + request.ttl, &*request.lease);
    if !is_held {
        lease.session.leave([&lease.name]);
        return Renewal::Lost;
    }
    let mut state = lease.session.state();
    match state.extend(&lease.name, lease.epoch, until) {
        true => Renewal::Renewed,
        false => Renewal::Lost,
    }
}

impl<'a, 'b, C: SessionConnection> NewGroup<'a, 'b, C> {
    /// Makes the attempts and answers them. Returns those that may be made again.
    fn run(
        self,
        store: &SessionStore<C>,
        limits: &Limits<'_>,
    ) -> impl Iterator<Item = Try<'a, 'b, C>> {
        let mut tries = self.tries;
        let requests = Requests::attempts(tries.iter().map(|it| it.name.clone()).collect());
        let result =
            store.try_on_slot(self.slot, &requests, self.idle, limits.until, limits.cancel);
        let is_refused = matches!(result, Err(Failure::NotSent(_)));
        tries.iter_mut().for_each(|it| it.is_refused = is_refused);
        Try::answer_all(tries, store, result)
    }
}

impl<'a, 'b, C: SessionConnection> Try<'a, 'b, C> {
    /// Answers the attempts of one statement. Returns those that may be made
    /// again: the session has ended, or no connection could be opened.
    fn answer_all(
        tries: Vec<Self>,
        store: &SessionStore<C>,
        result: Result<Made<C>, Failure>,
    ) -> impl Iterator<Item = Self> {
        let (made, attempted) = match result {
            Ok(mut made) => {
                let attempted = take(&mut made.attempted);
                (Some(made), attempted)
            }
            Err(failure) => (None, vec![Err(failure); tries.len()]),
        };
        let tries = tries.into_iter().zip(attempted);
        tries.filter_map(move |(mut one, attempted)| {
            // A connection that does not reply is closed, and what it was granted ends with it.
            let is_again = match attempted {
                Err(Failure::Closed(_)) => {
                    one.is_cut = true;
                    true
                }
                // An earlier request may hold the name, and is being ended.
                Err(Failure::Unanswered(_)) if made.is_some() => one.is_alone,
                Err(Failure::Unanswered(_)) => one.is_alone && !replace(&mut one.is_cut, true),
                Err(Failure::NotSent(_)) => one.is_refused,
                _ => false,
            };
            let granted = attempted.map(|epoch| made.as_ref().zip(epoch));
            let granted = granted.map_err(Failure::into_error);
            one.request.answer = Some(granted.map(|granted| {
                let (made, epoch) = granted?;
                Some(store.grant(made, one.request.request, one.name.clone(), epoch))
            }));
            is_again.then_some(one)
        })
    }
}
