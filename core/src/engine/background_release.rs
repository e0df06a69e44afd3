//! Releases that the caller's thread does not wait for. A few threads of the keeper finish them, in
//! order; each thread ends when no release is left.
//!
//! They are not the threads that renew, so that no renewal waits behind a release that hangs.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::contract::provider::{ErasedLease, Released};
use crate::engine::timer::spawn;
use crate::engine::workers::JobQueue;
use crate::error::{Error, ErrorKind};
use crate::sync::{lock, run_caught, wait};

use super::backoff::Limits;
use super::batch::Entry;
use super::exchange::Attempt;
use super::group::{Leases, LeftLease};
use super::hold::Hold;
use super::hold::dropped::DroppedGuard;
use super::hold::lease::Unwanted;
use super::key::Key;
use super::release_lease::{RELEASE_LIMIT, ReleaseAttempt};
use super::retry::Retry;
use super::{DROP_LIMIT, Engine};

/// The most leases that are being released. Each costs some hundred bytes.
const MAX_PENDING: usize = 1 << 16;

/// What a thread of the keeper gives back to the store.
enum Pending {
    Lease(PendingRelease),
    /// What an attempt of a part without a reply may have been granted. No thread of this process requests its name
    /// meanwhile.
    Attempt(usize, Attempt),
}

impl Pending {
    fn part(&self) -> usize {
        match self {
            Self::Lease(release) => release.lease.part,
            Self::Attempt(part, _) => *part,
        }
    }
}

/// A lease that a thread of the keeper releases.
struct PendingRelease {
    lease: ErasedLease,
    /// When the store has ended the lease by itself.
    until: HostInstant,
    /// The guard whose end is reported afterwards, if that has not been done.
    guard: Option<Box<DroppedGuard>>,
}

impl PendingRelease {
    /// Returns the hold if no thread of this process requests its name until the release is finished.
    fn hold_of_name(&self) -> Option<Arc<Hold>> {
        let guard = self.guard.as_ref()?;
        let keeps_name = guard.ending.keeps_name;
        keeps_name.then(|| Arc::clone(&guard.acquired.hold))
    }
}

/// The releases of a keeper that its own threads finish.
pub(crate) struct BackgroundReleases {
    state: Mutex<State>,
    /// Notified when no release is left.
    all_done: Condvar,
    /// Cancelled at the keeper's end: from then on nothing is repeated.
    ended: CancelToken,
}

struct State {
    /// By part of the store: a part that hangs delays no other.
    queue: JobQueue<usize, Pending>,
    threads: usize,
    /// The number of releases that are queued, under way, or wait for a renewal to return.
    pending: usize,
}

impl BackgroundReleases {
    pub(super) fn new(most_of_part: usize) -> Self {
        Self {
            state: Mutex::new(State {
                queue: JobQueue::new(most_of_part),
                threads: 0,
                pending: 0,
            }),
            all_done: Condvar::new(),
            ended: CancelToken::new(),
        }
    }

    pub(crate) fn pending(&self) -> usize {
        lock(&self.state).pending
    }

    /// Waits until no release is left, at most for `limit`.
    pub(super) fn wait_until_done(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        while state.pending > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = wait(&self.all_done, state, Some(left));
        }
    }

    /// Limits each release that is left to one request to the store.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Counts one more release. Returns false if there are too many.
    fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        let may_begin = state.pending < MAX_PENDING;
        state.pending += usize::from(may_begin);
        may_begin
    }

    fn finish(&self) {
        let mut state = lock(&self.state);
        state.pending = state.pending.saturating_sub(1);
        if state.pending == 0 {
            self.all_done.notify_all();
        }
    }

    /// Returns the next release, after that of the part `done`. `None` ends the calling thread.
    fn next(&self, done: Option<usize>) -> Option<(usize, Pending)> {
        let mut state = lock(&self.state);
        done.into_iter().for_each(|part| state.queue.end(part));
        let next = state.queue.take();
        state.threads -= usize::from(next.is_none());
        next
    }
}

impl Engine {
    /// Leaves the release of a guard's lease to the keeper's own threads. `lease` is `None` if a
    /// renewal has it, or if it was released before.
    pub(super) fn release_later(
        self: &Arc<Self>,
        lease: Option<ErasedLease>,
        guard: Box<DroppedGuard>,
    ) {
        if !self.background_releases.begin() {
            return self.end_dropped(&guard, Err(too_many()));
        }
        let hold = Arc::clone(&guard.acquired.hold);
        let (guard, lease) = match lease {
            Some(lease) => (guard, Some(lease)),
            None => match hold.release_after_renewal(guard) {
                Ok(()) => return,
                Err(left) => left,
            },
        };
        match lease {
            Some(lease) => self.start_release(Pending::Lease(PendingRelease {
                lease,
                until: self.clock.now() + hold.policy.ttl(),
                guard: Some(guard),
            })),
            None => {
                self.end_dropped(&guard, Ok(Released::AlreadyLost));
                self.background_releases.finish();
            }
        }
    }

    /// Releases a lease that came back from its renewal, and that no guard needs.
    pub(super) fn release_unwanted(self: &Arc<Self>, unwanted: Unwanted, ttl: Duration) {
        // A guard that was dropped has been counted. Without one, the ttl frees the name at the latest.
        if unwanted.guard.is_some() || self.background_releases.begin() {
            self.start_release(Pending::Lease(PendingRelease {
                lease: unwanted.lease,
                until: self.clock.now() + ttl,
                guard: unwanted.guard,
            }));
        }
    }

    /// Frees what the head's attempt may have been granted. Then the next thread may request the name.
    pub(super) fn abandon_later(
        self: &Arc<Self>,
        (key, part): (Key<'_>, usize),
        store_error: Option<Error>,
        attempt: Attempt,
    ) {
        if !self.background_releases.begin() {
            return self.queue.pass(key, store_error);
        }
        self.queue.keep(key, store_error);
        self.start_release(Pending::Attempt(part, attempt));
    }

    fn start_release(self: &Arc<Self>, release: Pending) {
        let mut state = lock(&self.background_releases.state);
        state.queue.push(release.part(), release);
        if state.threads >= state.queue.runnable() {
            return;
        }
        state.threads += 1;
        drop(state);
        let (engine, in_use) = (Arc::clone(self), self.background.begin());
        let started = spawn("lockkeeper-release", move || {
            engine.finish_releases();
            drop(engine);
            drop(in_use);
        });
        let Err(error) = started else { return };
        let mut state = lock(&self.background_releases.state);
        state.threads -= 1;
        if state.threads > 0 {
            return;
        }
        let unserved = state.queue.clear();
        drop(state);
        for pending in unserved {
            match pending {
                Pending::Lease(release) => self.end_release(release.guard, Err(error.clone())),
                Pending::Attempt(_, attempt) => self.end_abandoned(&attempt),
            }
        }
    }

    /// Leaves the release of a guard's lease to the batch that is under way with it.
    pub(super) fn release_under_way(
        self: &Arc<Self>,
        entry: &Entry<Leases>,
        guard: Box<DroppedGuard>,
    ) {
        let ttl = guard.acquired.hold.policy.ttl();
        let guard = match self.background_releases.begin() {
            true => Some(guard),
            false => {
                self.end_dropped(&guard, Err(too_many()));
                None
            }
        };
        self.leave_lease(entry, LeftLease::Release { ttl, guard });
    }

    /// Finishes releases until none is left.
    fn finish_releases(self: &Arc<Self>) {
        let mut done = None;
        while let Some((part, pending)) = self.background_releases.next(done) {
            done = Some(part);
            let release = match pending {
                Pending::Lease(release) => release,
                Pending::Attempt(_, attempt) => {
                    run_caught(|| self.provider.abandon(&attempt.request(&*self.clock)));
                    self.end_abandoned(&attempt);
                    continue;
                }
            };
            let hold = release.hold_of_name();
            let PendingRelease {
                lease,
                until,
                mut guard,
            } = release;
            let guard_of = (&mut guard, hold.as_deref().map(Hold::key));
            if let Some(answer) = self.release_until_answered(lease, until, guard_of) {
                self.end_release(guard, answer);
            }
        }
    }

    fn end_abandoned(&self, attempt: &Attempt) {
        self.queue.released(Key::new(&attempt.name, attempt.mode));
        self.closing.notify();
        self.background_releases.finish();
    }

    pub(super) fn end_release(
        &self,
        guard: Option<Box<DroppedGuard>>,
        answer: Result<Released, Error>,
    ) {
        if let Some(guard) = guard {
            self.end_dropped(&guard, answer);
        }
        self.background_releases.finish();
    }

    /// Lets the next thread have the name of a guard that was dropped, and reports the guard's end.
    fn end_dropped(&self, guard: &DroppedGuard, answer: Result<Released, Error>) {
        self.pass_on(guard.acquired.hold.key(), guard.ending);
        // The observer has the error.
        let _ = self.report_end(&guard.acquired, guard.ending, answer);
    }

    /// Asks the store to release a lease until it answers, or has ended the lease by itself. `None` if a
    /// batch that is under way with it finishes the release.
    fn release_until_answered(
        self: &Arc<Self>,
        mut lease: ErasedLease,
        until: HostInstant,
        (guard, kept_key): (&mut Option<Box<DroppedGuard>>, Option<Key<'_>>),
    ) -> Option<Result<Released, Error>> {
        let fail = |cause: &Error| {
            if let Some(key) = kept_key {
                self.queue.fail(key, cause);
            }
        };
        let limits = Limits {
            clock: &*self.clock,
            until,
            cancel: Some(&self.background_releases.ended),
        };
        let lost_reply = guard.as_mut().and_then(|guard| guard.lost_reply.take());
        let mut retry = Retry::new(limits, self.clock.now()).continued(lost_reply);
        let health = &self.parts.get(lease.part).health;
        retry.ride_out(health);
        if let Some((_, cause)) = health.outage() {
            fail(&cause);
        }
        let mut paused = retry.before_first();
        loop {
            if let Err(error) = paused {
                return Some(Err(not_released(error)));
            }
            let asked_at = self.clock.now();
            let deadline = until.min(asked_at + RELEASE_LIMIT);
            let error = match self.attempt_release(lease, (asked_at, deadline), retry.lost_reply())
            {
                ReleaseAttempt::Answered(answer) => {
                    let took = self.clock.now().saturating_since(asked_at);
                    health.set_slow(took >= DROP_LIMIT);
                    return Some(answer);
                }
                ReleaseAttempt::NoAnswer(again, error) => {
                    lease = again;
                    error
                }
                ReleaseAttempt::UnderWay(entry) => {
                    if guard.is_none() {
                        self.background_releases.finish();
                    }
                    let (ttl, mut guard) = (until.saturating_since(asked_at), guard.take());
                    if let Some(guard) = &mut guard {
                        guard.lost_reply = retry.lost_reply().cloned();
                    }
                    self.leave_lease(&entry, LeftLease::Release { ttl, guard });
                    return None;
                }
            };
            if error.kind() == ErrorKind::Unavailable {
                fail(&error);
            }
            paused = retry.after(&error, None);
        }
    }
}

fn too_many() -> Error {
    let text = format!(
        "{MAX_PENDING} dropped guards wait for the store already, so this lock was not released; the store frees it after its ttl"
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// Returns the error of a guard that was dropped, and that the store did not release.
fn not_released(cause: Error) -> Error {
    let text = "the guard was dropped, and the store gave no answer to its release; it frees the lock after its ttl at the latest";
    Error::new(cause.kind(), text).with_source(cause)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn wait_for_releases_ends_with_the_last_of_them_or_at_its_limit() {
        let releases = Arc::new(BackgroundReleases::new(1));
        assert!(releases.begin() && releases.begin());
        releases.wait_until_done(Duration::ZERO);
        assert_eq!(releases.pending(), 2);
        let waits = Arc::clone(&releases);
        let (sender, ended) = channel();
        thread::spawn(move || {
            waits.wait_until_done(100 * LIMIT);
            sender.send(waits.pending()).unwrap();
        });
        releases.finish();
        assert_eq!(
            ended.recv_timeout(Duration::ZERO),
            Err(RecvTimeoutError::Timeout)
        );
        releases.finish();
        assert_eq!(ended.recv_timeout(LIMIT), Ok(0));
        releases.finish();
        assert_eq!(releases.pending(), 0);
    }
}
