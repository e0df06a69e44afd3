//! The write of a round, and the answers that follow from it.

use std::sync::atomic::Ordering;

use lockkeeper_core::{Error, Grant, Renewal};

use super::{Change, Changes, Round, Then};
use crate::entry::Contents;
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::store::{Version, Write};
use crate::task::{Answered, Answers, OUTSIDE_AFTER, Position, RoundEnd, unexpected};

impl Round<'_> {
    /// Writes the entries that change, and answers their tasks.
    pub(super) fn write(
        &self,
        changes: Changes<'_>,
        answers: &mut Answers,
    ) -> Result<RoundEnd, Error> {
        let is_made = |change: &Change| change.next.is_some() && change.seen.is_none();
        let floor = match changes.values().any(is_made) {
            true => match self.floor.clone()? {
                // The store is new, or was wiped.
                None => return self.make_floor(),
                found => found,
            },
            false => None,
        };
        let changed = changes.into_iter().filter_map(|(key, change)| {
            let text = change.next.as_ref()?.text();
            Some((key, change, text))
        });
        let texts: Vec<(&Key, Change, String)> = changed.collect();
        if texts.is_empty() {
            return Ok(RoundEnd::Written);
        }
        let floor = floor.map(|(version, _)| (&self.register.floor, version));
        let writes = texts.iter().map(|(key, change, text)| Write {
            key,
            seen: change.seen,
            session: change.session.as_deref(),
            also: floor.filter(|_| change.seen.is_none()),
            value: Some(text),
        });
        let writes: Vec<Write<'_>> = writes.collect();
        let written = self.register.store.write(&writes, self.call)?;
        if written.len() != writes.len() {
            return Err(unexpected());
        }
        let mut ended = RoundEnd::Written;
        for ((key, change, _), version) in texts.into_iter().zip(written) {
            self.register
                .freed
                .note(key, change.next.as_ref(), version, self.asked_at);
            for (index, then) in change.then {
                match version {
                    Some(_) => {
                        let answer = self.then(then, key, change.next.as_ref(), version);
                        if let Some(open) = answers.get_mut(index) {
                            *open = Some(answer);
                        }
                    }
                    // It waits where it is, and that is outside of the queue if it was about to enter it.
                    None if self.conflicts >= OUTSIDE_AFTER
                        && matches!(then, Then::Waits { .. }) =>
                    {
                        let answer = self.then(then, key, change.found.as_ref(), change.seen);
                        if let Some(open) = answers.get_mut(index) {
                            *open = Some(answer);
                        }
                    }
                    None if ended != RoundEnd::UrgentConflict => {
                        ended = match then.is_urgent() {
                            true => RoundEnd::UrgentConflict,
                            false => RoundEnd::Conflict,
                        };
                    }
                    None => {}
                }
            }
        }
        Ok(ended)
    }

    /// Makes the entry of the largest epoch that was removed. The tasks are decided again after that.
    fn make_floor(&self) -> Result<RoundEnd, Error> {
        let floor = &self.register.floor;
        let largest = self.register.largest.load(Ordering::Relaxed);
        let text = Contents::free(floor, largest).text();
        let write = Write {
            key: floor,
            seen: None,
            session: None,
            also: None,
            value: Some(&text),
        };
        self.register.store.write(&[write], self.call)?;
        Ok(RoundEnd::Written)
    }

    /// Returns the answer to a task. `contents` is what its entry contains now.
    pub(super) fn then(
        &self,
        then: Then,
        key: &Key,
        contents: Option<&Contents>,
        version: Option<Version>,
    ) -> Result<Answered, Error> {
        Ok(match then {
            Then::Removed { is_done, .. } => Answered::Removed(is_done),
            Then::Moved => Answered::Renewed(Renewal::Renewed, None),
            Then::Mismatch(error) => return Err(error),
            Then::Waits { owner, ahead } => Answered::Waits(Position {
                ahead,
                version,
                is_queued: contents.is_some_and(|it| it.waits(&owner)),
            }),
            Then::Granted {
                owner,
                session,
                slot,
                ..
            } => {
                let lease = contents.and_then(|it| it.lease(&owner));
                let epoch = lease.ok_or_else(unexpected)?.epoch;
                let (register, ends) = (self.register, self.asked_at + session.ttl);
                if register.largest.fetch_max(epoch, Ordering::Relaxed) == 0 {
                    register.watch.unpark();
                }
                register
                    .ends
                    .enter(key, &owner, Some((epoch, &session.id)), ends);
                let alone_at = contents.zip(version);
                let alone_at = alone_at.and_then(|(it, version)| it.alone_at(&owner, version));
                Answered::Granted(Grant {
                    lease: RegisterLease {
                        key: key.clone(),
                        owner,
                        epoch,
                        session: session.id,
                        ttl: session.ttl,
                        alone_at,
                    },
                    epoch,
                    asked_at: session.kept_at,
                    slot,
                })
            }
        })
    }
}

impl Then {
    /// Returns whether it is of a holder or of a waiter in the queue.
    fn is_urgent(&self) -> bool {
        match self {
            Then::Granted { is_queued, .. } => *is_queued,
            Then::Removed { is_lease, .. } => *is_lease,
            Then::Moved => true,
            Then::Waits { .. } | Then::Mismatch(_) => false,
        }
    }
}
