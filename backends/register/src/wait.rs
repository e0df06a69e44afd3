//! Waits for a name, in the queue of its entry.
//!
//! The first waiters wait for a change of the entry, where the store notifies of it. Otherwise each waiter polls, at
//! random within a range that depends on its position, and never less often than once a second.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant};
use lockkeeper_remote::{LAST_ATTEMPT, pause};

use crate::key::Key;
use crate::lease::RegisterLease;
use crate::register::Register;
use crate::store::{Call, Version};
use crate::task::{Answered, Others, Position, unexpected};

/// How many waiters of a name wait for a notification. The others poll, so that a change does not wake all of them.
const NOTIFIED: usize = 4;
/// The longest pause of a waiter that is notified, for a lost notification. It is less than [`GRACE`].
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The first pause of the first waiter, where the store does not notify, and the longest one. It grows while nothing
/// changes.
const FIRST_POLL: Duration = Duration::from_millis(4);
const LONGEST_POLL: Duration = Duration::from_millis(100);
/// The longest pause of any waiter.
const MAX_POLL: Duration = Duration::from_secs(1);

impl Register {
    /// Acquires a name as [`Backend::acquire`](lockkeeper_core::Backend::acquire) says, with a wait until `deadline`.
    pub(crate) fn wait(
        &self,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) -> Result<Option<Grant<RegisterLease>>, Error> {
        let (key, owner) = (
            Key::of(request.name(), request.mode()),
            request.owner().lease_id().to_string(),
        );
        let end = request.end().min(deadline + LAST_ATTEMPT);
        let (mut others, mut poll) = (Others::new(), Poll::default());
        // Whether a place may be in the queue, and whether a write may still be under way.
        let (mut is_queued, mut in_doubt) = (false, request.is_retry());
        // Busy is the answer only if the store said so last.
        let mut has_failed = true;
        loop {
            let is_over = !has_failed && request.now() >= deadline;
            if is_over || request.is_cancelled() {
                if is_queued || in_doubt {
                    self.leave(&key, &owner, in_doubt, request.end());
                }
                return Ok(None);
            }
            let call = Call {
                deadline: end,
                cancel: request.cancel(),
            };
            let task = self.task(&key, &owner, request);
            match self.carry_out_one(task, &mut others, call) {
                Ok(Answered::Granted(grant)) => return Ok(Some(grant)),
                Ok(Answered::Waits(position)) => {
                    request.contended();
                    (is_queued, has_failed) = (position.is_queued, false);
                    self.pause_at(&key, position, &mut poll, request, deadline);
                }
                Ok(_) => return Err(unexpected()),
                // The cancel may have cut a write short.
                Err(_) if request.is_cancelled() => (is_queued, in_doubt) = (true, true),
                Err(error) => {
                    has_failed = true;
                    in_doubt |= error.kind() == ErrorKind::Unknown;
                    // If it asks again at once, it keeps its position.
                    let may_be_queued = is_queued || in_doubt;
                    if may_be_queued && error.is_retryable() && request.retry(&error) {
                        is_queued = true;
                        continue;
                    }
                    if may_be_queued {
                        self.ends.enter(&key, &owner, None, request.now());
                    }
                    // An earlier write may have been granted the name.
                    return Err(match (in_doubt, error.kind()) {
                        (true, ErrorKind::Unavailable) => error.with_kind(ErrorKind::Unknown),
                        _ => error,
                    });
                }
            }
        }
    }

    /// Removes the place of a request. If that fails, a thread of the provider repeats it.
    fn leave(&self, key: &Key, owner: &str, in_doubt: bool, end: HostInstant) {
        let call = Call::until(end.min(self.now() + LAST_ATTEMPT));
        if self.remove(key, owner, (None, in_doubt), call).is_err() {
            self.ends.enter(key, owner, None, self.now());
        }
    }

    /// Pauses until the entry may have changed.
    fn pause_at(
        &self,
        key: &Key,
        position: Position,
        poll: &mut Poll,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) {
        let Position { ahead, version, .. } = position;
        let cancel = request.cancel();
        let left = deadline.saturating_since(request.now());
        if ahead < NOTIFIED {
            let limit = LOOK_EVERY.mul_f64(0.8 + fastrand::f64() / 5.0).min(left);
            let call = Call {
                deadline: request.now() + limit,
                cancel,
            };
            if let Some(Ok(())) = self.store.wait(key, version, call) {
                return;
            }
        }
        pause(poll.next_pause(position).min(left), cancel);
    }
}

/// The pauses of a waiter that polls.
#[derive(Default)]
struct Poll {
    /// What the first waiter has seen of the entry, or how many waiters were ahead of another one.
    seen: Option<(usize, Option<Version>)>,
    pauses: i32,
}

impl Poll {
    fn next_pause(&mut self, Position { ahead, version, .. }: Position) -> Duration {
        // Only the first waiter is concerned by each change. The others would read the entry far more often than it is
        // granted, and with many processes that keeps the server from granting it.
        let seen = Some((ahead, version.filter(|_| ahead == 0)));
        if self.seen != seen {
            (self.seen, self.pauses) = (seen, 0);
        }
        let grown = FIRST_POLL.mul_f64(1.25_f64.powi(self.pauses.min(30)));
        self.pauses += 1;
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let pause = grown
            .min(LONGEST_POLL)
            .saturating_mul((ahead.saturating_mul(3) / 2).saturating_add(1));
        pause.min(MAX_POLL).mul_f64(0.75 + fastrand::f64() / 4.0)
    }
}
