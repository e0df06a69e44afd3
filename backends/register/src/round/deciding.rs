//! The decisions of a round: what becomes of each entry that was read.

use lockkeeper_core::{Error, HostInstant, Renewal, limit_mismatch};

use super::{Change, Round, Then};
use crate::decide::{self, Answer, Attempt, Kind};
use crate::entry::{Contents, MAX_WAITERS};
use crate::sessions::Session;
use crate::store::SessionId;
use crate::task::{Answered, Task, Verb};

impl Round<'_> {
    /// Decides a task. It has no answer yet if its entry has to be written, or read again.
    pub(super) fn decide(
        &mut self,
        index: usize,
        task: &mut Task<'_>,
        change: &mut Change,
    ) -> Option<Result<Answered, Error>> {
        match &mut task.verb {
            Verb::Attempt {
                attempt,
                ttl,
                place_ttl,
            } => {
                let session = self.sessions.get(ttl)?.clone();
                if attempt.kind == Kind::Queues {
                    attempt.place.clone_from(&self.sessions.get(place_ttl)?.id);
                }
                self.attempt(index, attempt, session, change)
            }
            Verb::Renew { lease, ttl } => {
                let ends = &self.register.ends;
                let found = change.found.as_ref();
                let is_held = found.is_some_and(|it| it.has(task.owner, lease.epoch))
                    && !self.ended.contains(&lease.session)
                    && ends.renew(lease, self.asked_at, *ttl);
                Some(Ok(match is_held {
                    true => {
                        let seen = found.zip(change.seen);
                        let alone_at = seen.and_then(|(it, seen)| it.alone_at(task.owner, seen));
                        Answered::Renewed(Renewal::Renewed, alone_at)
                    }
                    false => Answered::Renewed(Renewal::Lost, None),
                }))
            }
            Verb::Move { lease, session } => {
                let moved = change
                    .base()
                    .and_then(|it| decide::move_to(it, lease, session));
                let Some(next) = moved.filter(|_| change.session.is_none()) else {
                    let is_other = change.session.is_some();
                    return (!is_other).then_some(Ok(Answered::Renewed(Renewal::Lost, None)));
                };
                change.next = Some(next);
                change.session = Some(session.clone());
                change.then.push((index, Then::Moved));
                None
            }
            Verb::Remove {
                epoch,
                settles,
                settling,
                ..
            } => {
                *settles &= self.is_first || *settling == change.seen;
                *settling = change.seen;
                let base = change.base();
                let removed = base.and_then(|it| decide::remove(it, task.owner, *epoch));
                let (is_done, is_lease) = (removed.is_some(), epoch.is_some());
                let settled = || match base {
                    Some(base) => base.clone(),
                    None => Contents::free(task.key, self.least_epoch()),
                };
                let settled = settles.then(settled);
                match removed.or(settled) {
                    Some(next) => {
                        change.next = Some(next);
                        change
                            .then
                            .push((index, Then::Removed { is_done, is_lease }));
                        None
                    }
                    None => Some(Ok(Answered::Removed(false))),
                }
            }
        }
    }

    fn attempt(
        &mut self,
        index: usize,
        attempt: &mut Attempt<'_>,
        session: Session,
        change: &mut Change,
    ) -> Option<Result<Answered, Error>> {
        if change.session.as_ref().is_some_and(|it| *it != session.id) {
            // One write has one session.
            return None;
        }
        attempt.lease.session.clone_from(&session.id);
        attempt.least_epoch = self.least_epoch();
        let owner = attempt.lease.owner.as_str();
        let base = change.base();
        let has_ended = |id: &SessionId| self.ended.contains(id);
        let (mut next, mut answer) = decide::attempt(base, attempt, has_ended, false);
        let is_unclaimed = matches!(
            answer,
            Answer::Waits {
                is_unclaimed: true,
                ..
            }
        );
        let first = base.filter(|_| is_unclaimed).and_then(|base| {
            let first = base.queue.iter().find(|it| !has_ended(&it.session))?;
            Some((first.owner.as_str(), base.last))
        });
        if first.is_some_and(|first| self.register.is_overdue(attempt.key, first)) {
            (next, answer) = decide::attempt(base, attempt, has_ended, true);
        }
        // The answer depends on whether these have ended: the holders, the first waiter, and the session in which this owner
        // was granted the name before. If one of them has, it depends on all. With many waiters, reads that check all each
        // time keep the server from granting.
        let most = match self.ended.is_empty() {
            true => 1,
            false => MAX_WAITERS,
        };
        let deciding = base.filter(|_| !matches!(answer, Answer::Granted { .. }));
        let deciding = deciding
            .into_iter()
            .flat_map(|it| it.sessions().take(it.leases.len() + most));
        let own = base.and_then(|base| base.lease(owner));
        let deciding = deciding.chain(own.map(|own| &own.session));
        let is_current = |id: &str| id == session.id || id == attempt.place;
        let deciding: Vec<_> = deciding.filter(|id| !is_current(id)).cloned().collect();
        let is_checked = deciding.iter().all(|id| self.checked.contains(id));
        self.deciding.extend(deciding);
        // A waiter's next look checks them. What came after an earlier read of this look lived a moment ago.
        let is_queued = base.is_some_and(|it| it.waits(owner));
        let is_new = self.checked.is_empty() || !self.ended.is_empty();
        if !is_checked && !is_queued && is_new {
            return None;
        }
        let session = match own.filter(|own| next.is_none() && own.session != session.id) {
            // The engine renews such a grant before it relies on it.
            Some(own) => Session {
                id: own.session.clone(),
                kept_at: HostInstant::default(),
                ..session
            },
            None => session,
        };
        let then = match answer {
            Answer::Granted { slot, .. } => Then::Granted {
                owner: owner.to_owned(),
                session: session.clone(),
                slot,
                is_queued,
            },
            Answer::Waits { ahead, .. } => Then::Waits {
                owner: owner.to_owned(),
                ahead,
            },
            Answer::Gone => return Some(Ok(Answered::Gone)),
            Answer::Mismatch { held } => {
                let limit = attempt.lease.mode.limit().unwrap_or_default();
                Then::Mismatch(limit_mismatch(limit, held))
            }
        };
        let Some(next) = next else {
            return Some(self.then(then, attempt.key, base, change.seen));
        };
        if let (Kind::Resumes, Answer::Granted { epoch, .. }) = (attempt.kind, answer) {
            // If no reply comes, only this provider's timer ends the lease: other leases keep its session.
            let ends = self.asked_at + session.ttl;
            let lease = Some((epoch, session.id.as_str()));
            self.register.ends.enter(attempt.key, owner, lease, ends);
        }
        change.next = Some(next);
        change.session = match then {
            // Without a place in the queue, it has only removed others.
            Then::Waits { .. } => (attempt.kind == Kind::Queues).then(|| attempt.place.clone()),
            _ => Some(session.id),
        };
        change.then.push((index, then));
        None
    }
}
