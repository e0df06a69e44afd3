//! Acquiring a name, and waiting for it in one queue with other processes.
//!
//! A process first listens for losses, and then makes its attempt, which checks the files. In the other order,
//! no listener would notice a file that is deleted in between.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, CancelRegistration, Error, ErrorKind, Grant, HostInstant};

use super::attempt::{Busy, Outcome, QueueEntry, attempt};
use super::db::Session;
use super::holders::Key;
use super::lease::{self, Acquisition, SqliteLease};
use super::process::{HolderWatch, Process};
use super::retry::BusyRetry;
use super::store::Store;
use super::wake::{Parker, WakeReason};

/// The longest time between two attempts of a waiter, notified or not.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of the second waiter in the queue, since the first may be stopped or dead.
const SECOND_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The largest number of holders that a waiter watches. Each takes a descriptor.
const MAX_WATCHED: usize = 16;

/// Acquires a name as [`Backend::acquire`](lockkeeper_core::Backend::acquire) says.
pub(super) fn acquire(
    store: &Store,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<SqliteLease>>, Error> {
    let retry =
        || BusyRetry::brief(request.clock(), request.deadline()).cancelled_by(request.cancel());
    // The listener does not end while this lives.
    let mut acquisition = Acquisition::new(store, request);
    store.listen();
    if request.is_resume() {
        let resume = |session: &Session<'_>| lease::resume(session, &acquisition, request.now());
        return store.db.transact(&retry(), resume);
    }
    let granted = store.db.run(&retry(), |session| {
        lease::take_if_free(session, &acquisition, request.now())
    })?;
    if granted.is_some() {
        return Ok(granted);
    }
    let mut waiter = request
        .deadline()
        .map(|deadline| Waiter::new(store, request, deadline));
    loop {
        if let Some(waiter) = &mut waiter {
            waiter.prepare(request);
        }
        let retry = retry();
        let entry = waiter.as_ref().map(Waiter::entry);
        let attempt = store.db.transact(&retry, |session| {
            attempt(session, &acquisition, entry, request.now())
        });
        let outcome = attempt.map(|attempt| {
            store.notify_next(acquisition.key, attempt.next, &retry);
            attempt.outcome
        });
        let busy = match (outcome, &mut waiter) {
            (Ok(Outcome::Answered(answer)), waiter) => {
                if let Some(waiter) = waiter {
                    waiter.id = None;
                }
                return answer.map(Some);
            }
            (Ok(Outcome::Busy(busy)), _) => busy,
            // By returning the error, this waiter would lose its position in the queue.
            (Err(error), Some(waiter)) if waiter.id.is_some() && is_transient(&error) => {
                acquisition.recover |= error.kind() == ErrorKind::Unknown;
                if !request.retry(&error) {
                    return Err(error);
                }
                continue;
            }
            (Err(error), _) => return Err(error),
        };
        request.contended();
        let Some(waiter) = &mut waiter else {
            return Ok(None);
        };
        waiter.id = busy.id;
        let now = request.now();
        if now >= waiter.deadline || request.is_cancelled() {
            return Ok(None);
        }
        waiter.wait(busy, now);
    }
}

/// Returns whether the error may pass while the caller waits, as a full disk does.
fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
}

/// A waiter and its row in the queue, which is removed when this is dropped.
struct Waiter<'a> {
    store: &'a Store,
    key: Key<'a>,
    deadline: HostInstant,
    parker: Arc<Parker>,
    /// The id of the row, if the waiter is queued.
    id: Option<i64>,
    /// The watched holders.
    watches: Vec<HolderWatch>,
    /// Holders that have ended although their rows look live. They are not watched again.
    ended: Vec<Process>,
    _wake: Option<CancelRegistration>,
}

impl<'a> Waiter<'a> {
    fn new(store: &'a Store, request: &AcquireRequest<'a>, deadline: HostInstant) -> Self {
        let parker = store.parkers.take();
        let cancelled = Arc::clone(&parker);
        let cancel = request.cancel();
        Self {
            store,
            key: store.key(request.name(), request.mode().is_permit()),
            deadline,
            parker,
            id: None,
            watches: Vec::new(),
            ended: Vec::new(),
            _wake: cancel.map(|cancel| cancel.on_cancel(move || cancelled.unpark())),
        }
    }

    /// Makes the waiter ready for notifications. Another program may have deleted the socket.
    fn prepare(&mut self, request: &AcquireRequest<'a>) {
        if !self.parker.exists() {
            *self = Self::new(self.store, request, self.deadline);
        }
        self.parker.clear();
    }

    fn entry(&self) -> QueueEntry<'_> {
        QueueEntry {
            id: self.id,
            address: self.parker.address(),
        }
    }

    /// Waits until the next attempt is due.
    fn wait(&mut self, busy: Busy, now: HostInstant) {
        // Only the first waiter watches the holders, so that one waiter wakes.
        let mut holders = busy.holders;
        holders.retain(|holder| busy.ahead == 0 && !self.ended.contains(holder));
        self.watches
            .retain(|watch| holders.contains(&watch.process));
        holders.retain(|holder| self.watches.iter().all(|it| &it.process != holder));
        let mut unwatched = false;
        for holder in &holders {
            let room = self.watches.len() < MAX_WATCHED;
            match room.then(|| HolderWatch::new(holder)).flatten() {
                Some(watch) => self.watches.push(watch),
                None => unwatched |= holder != Process::own() && !holder.is_none(),
            }
            if holder.is_dead() {
                // The holder ended between the attempt and the watch.
                return;
            }
        }
        let interval = if busy.ahead == 1 || unwatched {
            SECOND_POLL_INTERVAL
        } else {
            POLL_INTERVAL
        };
        let interval = interval.mul_f64(0.8 + fastrand::f64() / 5.0);
        let until = busy.until.min(now + interval).min(self.deadline);
        let limit = until.saturating_since(now);
        if let WakeReason::HolderEnded(index) = self.parker.wait(&self.watches, limit) {
            self.ended.push(self.watches.swap_remove(index).process);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let retry = BusyRetry::new(
            &*self.store.clock,
            self.deadline.min(self.store.clock.now()),
        );
        let dequeued = self
            .id
            .is_none_or(|id| self.store.dequeue(self.key, id, &retry).is_ok());
        // If the row could not be removed, it keeps the address of this parker, which is then dropped. The next
        // process that notifies the address removes the row. So a database that stays locked does not delay the
        // acquisition.
        if dequeued {
            self.store.parkers.keep(Arc::clone(&self.parker));
        }
    }
}
