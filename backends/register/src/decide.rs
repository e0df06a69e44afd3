//! The function that decides: from an entry and a request to a new entry and an answer. It has no clock and does no I/O;
//! `tests/model/` runs it under a model checker.
//!
//! First come, first served, whatever the modes: a request is granted if no earlier request waits, and the holders admit
//! it. An entry with a free name may still have waiters. The first of them takes the name by its own write, so nothing is
//! reserved for it. If it does not, others see an entry that stays the same although its first waiter could be granted.
//! After a while by their own clocks they remove that waiter, which queues again if it still lives. Until then, no other
//! request enters the queue: with many processes, the first waiter would find another version each time.

use lockkeeper_core::Mode;

use crate::entry::{Contents, Lease, MAX_LEASES, MAX_WAITERS, Waiter};
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::store::SessionId;

/// An attempt to acquire a name.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) key: &'a Key,
    /// The lease that is added with the grant, which sets its epoch and slot.
    pub(crate) lease: Lease,
    pub(crate) kind: Kind,
    /// The session with which its place in the queue ends.
    pub(crate) place: SessionId,
    /// The epoch is not smaller than this.
    pub(crate) least_epoch: u64,
}

/// What an attempt does if the name is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tries,
    Queues,
    /// It takes over the lease of its owner, with a larger epoch, and nothing else.
    Resumes,
}

/// What an attempt is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The entry has a lease of this owner.
    Granted { epoch: u64, slot: u32 },
    /// Another holder has the name, or an earlier request waits.
    Waits {
        /// The number of earlier waiters.
        ahead: usize,
        /// Whether the first of them could be granted.
        is_unclaimed: bool,
    },
    /// There is no lease to resume.
    Gone,
    /// Permits of this other limit are held.
    Mismatch { held: u32 },
}

/// Decides an attempt. The new contents are `None` if the entry stays as it is.
///
/// The leases and waiters of `ended` sessions count as removed. If `skips_first`, the first waiter is removed if it could
/// be granted.
pub(crate) fn attempt(
    found: Option<&Contents>,
    attempt: &Attempt<'_>,
    ended: impl Fn(&SessionId) -> bool,
    skips_first: bool,
) -> (Option<Contents>, Answer) {
    let Attempt { key, lease, .. } = attempt;
    let mut next = match found {
        Some(found) => found.clone(),
        None => Contents::free(key, 0),
    };
    next.end(ended);
    let own = next.leases.iter_mut().find(|it| it.owner == lease.owner);
    match (own, attempt.kind) {
        // Also again, after a reply that was lost. The lease of the last write is the only one that lives.
        (Some(own), Kind::Resumes) => {
            let (epoch, slot) = (attempt.least_epoch.max(next.last + 1), own.slot);
            *own = Lease {
                epoch,
                slot,
                ..lease.clone()
            };
            next.last = epoch;
            return (Some(next), Answer::Granted { epoch, slot });
        }
        (Some(own), _) => {
            let (epoch, slot) = (own.epoch, own.slot);
            return (None, Answer::Granted { epoch, slot });
        }
        (None, Kind::Resumes) => return (None, Answer::Gone),
        (None, _) => {}
    }
    let is_own = |waiter: &Waiter| waiter.owner == lease.owner;
    let is_unclaimed = |next: &Contents| {
        let first = next.queue.first().filter(|first| !is_own(first));
        first.is_some_and(|first| matches!(admit(&next.leases, first.mode), Ok(Some(_))))
    };
    let skipped = skips_first && is_unclaimed(&next);
    if skipped {
        next.queue.remove(0);
    }
    let position = next.queue.iter().position(is_own);
    let ahead = position.unwrap_or(next.queue.len());
    match admit(&next.leases, lease.mode) {
        Err(held) => {
            next.queue.retain(|waiter| !is_own(waiter));
            let is_changed = skipped || position.is_some();
            (is_changed.then_some(next), Answer::Mismatch { held })
        }
        Ok(Some(slot)) if ahead == 0 => {
            let epoch = attempt.least_epoch.max(next.last + 1);
            let lease = Lease {
                epoch,
                slot,
                ..lease.clone()
            };
            next.queue.retain(|waiter| !is_own(waiter));
            next.last = epoch;
            next.leases.push(lease);
            (Some(next), Answer::Granted { epoch, slot })
        }
        Ok(_) => {
            // A write would make that of a first waiter fail, which is about to take the name.
            let is_open = !is_unclaimed(&next) && ahead < MAX_WAITERS;
            let enters = attempt.kind == Kind::Queues && position.is_none() && is_open;
            if enters {
                next.queue.push(Waiter {
                    owner: lease.owner.clone(),
                    mode: lease.mode,
                    session: attempt.place.clone(),
                });
            }
            let is_unclaimed = is_unclaimed(&next);
            let answer = Answer::Waits {
                ahead,
                is_unclaimed,
            };
            ((enters || skipped).then_some(next), answer)
        }
    }
}

/// Removes the lease and the place of an owner; the lease only if it has this epoch, which another holder has replaced if it
/// was resumed. `None` if there is neither.
pub(crate) fn remove(found: &Contents, owner: &str, epoch: Option<u64>) -> Option<Contents> {
    let mut next = found.clone();
    let is_it = |lease: &Lease| lease.owner == owner && epoch.is_none_or(|it| it == lease.epoch);
    next.leases.retain(|lease| !is_it(lease));
    next.queue.retain(|waiter| waiter.owner != owner);
    (next != *found).then_some(next)
}

/// Moves a lease to another session. `None` if it is gone.
pub(crate) fn move_to(found: &Contents, held: &RegisterLease, session: &str) -> Option<Contents> {
    let mut next = found.clone();
    let mut leases = next.leases.iter_mut();
    let lease = leases.find(|it| it.owner == held.owner && it.epoch == held.epoch)?;
    session.clone_into(&mut lease.session);
    Some(next)
}

/// Returns the slot of a grant in `mode` beside these leases, or `None` if they do not admit it.
///
/// # Errors
/// The limit of the permits that are held, if it is another one.
fn admit(leases: &[Lease], mode: Mode) -> Result<Option<u32>, u32> {
    match mode {
        Mode::Exclusive => Ok(leases.is_empty().then_some(0)),
        Mode::Shared => {
            let is_shared = |lease: &Lease| lease.mode == Mode::Shared;
            let is_admitted = leases.iter().all(is_shared) && leases.len() < MAX_LEASES;
            Ok(is_admitted.then_some(0))
        }
        Mode::Permit { limit } => {
            let mut limits = leases.iter().filter_map(|lease| lease.mode.limit());
            match limits.find(|held| *held != limit) {
                Some(held) => Err(held),
                None => Ok((0..limit).find(|slot| leases.iter().all(|it| it.slot != *slot))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::LockName;

    use super::*;

    fn lease(owner: &str) -> Lease {
        Lease {
            owner: owner.to_owned(),
            epoch: 0,
            mode: Mode::Exclusive,
            slot: 0,
            session: owner.to_owned(),
            host: String::new(),
            pid: 0,
            label: String::new(),
            since: 0,
        }
    }

    #[test]
    fn queue_stays_as_it_is_until_the_first_waiter_has_taken_a_free_name() {
        let key = Key::of(&LockName::new("a").unwrap(), Mode::Exclusive);
        let asks = |found: &Contents, owner: &str| {
            let request = Attempt {
                key: &key,
                lease: lease(owner),
                kind: Kind::Queues,
                place: owner.to_owned(),
                least_epoch: 1,
            };
            attempt(Some(found), &request, |_| false, false).0
        };
        let mut held = Contents::free(&key, 1);
        held.leases.push(lease("holder"));
        let waits = asks(&held, "first").unwrap();
        let both = asks(&waits, "second").unwrap();
        assert!(both.waits("first") && both.waits("second"));
        let free = remove(&waits, "holder", None).unwrap();
        assert_eq!(asks(&free, "second"), None);
        let taken = asks(&free, "first").unwrap();
        assert!(asks(&taken, "second").unwrap().waits("second"));
    }
}
