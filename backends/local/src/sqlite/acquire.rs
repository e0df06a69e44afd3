//! Acquiring a name, and waiting for it in one queue with other processes.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, CancelRegistration, Error, ErrorKind, HostInstant};

use super::db::{Patience, Session};
use super::process::Process;
use super::store::Store;
use super::wait_queue::{self, Acquisition, Key, LockRow, NextHolder};
use super::wake::{HolderWatch, Parker, WakeReason};

/// The longest time between two attempts of a waiter, notified or not.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval for the second waiter in the queue: the first may be stopped or dead.
const SECOND_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after an attempt that failed because the database does not work.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// A grant, and an instant before its request.
pub(super) struct Acquired {
    pub(super) epoch: u64,
    pub(super) asked_at: HostInstant,
}

/// The result of one attempt.
type AttemptResult = Result<Acquired, Busy>;

/// The state of a name that is held, or that another waiter gets first.
struct Busy {
    /// The waiter to notify.
    next: NextHolder,
    /// When the lease or the reservation expires.
    until: HostInstant,
    holder: Option<Process>,
    /// The number of waiters ahead in the queue, at most 2.
    ahead: u32,
}

pub(super) fn acquire(
    store: &Store,
    request: &AcquireRequest<'_>,
) -> Result<Option<Acquired>, Error> {
    match try_or_wait(store, request) {
        // The cancellation ended the retries on a locked database.
        Err(_) if request.is_cancelled() => Ok(None),
        result => result,
    }
}

fn try_or_wait(store: &Store, request: &AcquireRequest<'_>) -> Result<Option<Acquired>, Error> {
    let mut acquisition = Acquisition {
        key: store.key(request.name()),
        owner: request.owner(),
        ttl: request.ttl(),
        recover: request.is_retry(),
    };
    let is_cancelled = || request.is_cancelled();
    let patience = |deadline| Patience {
        is_cancelled: &is_cancelled,
        ..Patience::new(request.clock(), deadline)
    };
    let granted = store.db.run(&patience(request.deadline()), |session| {
        let asked_at = request.now();
        let epoch = wait_queue::take_if_free(session, &acquisition, asked_at)?;
        Ok(epoch.map(|epoch| Acquired { epoch, asked_at }))
    });
    acquisition.recover = match granted {
        Ok(Some(acquired)) => return Ok(Some(acquired)),
        Ok(None) => acquisition.recover,
        // The name may have been granted; the next attempt recognises the grant by its owner.
        Err(error) if error.kind() == ErrorKind::Unknown => true,
        Err(error) => return Err(error),
    };
    let Some(deadline) = request.deadline() else {
        let patience = patience(None);
        let result = store.db.transact(&patience, |session| {
            attempt(session, &acquisition, None, request.now())
        })?;
        return Ok(match result {
            Ok(acquired) => Some(acquired),
            Err(busy) => {
                store.notify_next(acquisition.key, busy.next, &patience);
                request.contended();
                None
            }
        });
    };
    let mut waiter = Waiter::new(store, request, acquisition.key);
    let mut watch: Option<HolderWatch> = None;
    // A holder that has ended although its row is live is not watched twice.
    let mut ended: Option<Process> = None;
    loop {
        let patience = patience(Some(deadline));
        if !waiter.parker.exists() {
            waiter = Waiter::new(store, request, acquisition.key);
        }
        waiter.parker.clear();
        let mut id = waiter.id;
        let result = store.db.transact(&patience, |session| {
            // A failed transaction was rolled back, and a new queue entry with it.
            id = waiter.id;
            let queue = Some((&mut id, &*waiter.parker));
            attempt(session, &acquisition, queue, request.now())
        });
        let result = match result {
            Ok(result) => result,
            // The queue entry is still there.
            Err(error) if waiter.id.is_some() && is_transient(&error) => {
                let left = deadline.saturating_since(request.now());
                if left.is_zero() || is_cancelled() {
                    return Err(error);
                }
                acquisition.recover |= error.kind() == ErrorKind::Unknown;
                waiter.parker.wait(None, ERROR_PAUSE.min(left));
                continue;
            }
            Err(error) => return Err(error),
        };
        waiter.id = id;
        let busy = match result {
            Ok(acquired) => return Ok(Some(acquired)),
            Err(busy) => busy,
        };
        store.notify_next(acquisition.key, busy.next, &patience);
        request.contended();
        let now = request.now();
        if now >= deadline || request.is_cancelled() {
            return Ok(None);
        }
        // Only the first waiter watches the holder, so that one waiter wakes.
        let holder = busy
            .holder
            .filter(|holder| busy.ahead == 0 && ended.as_ref() != Some(holder));
        if watch.as_ref().map(|watch| &watch.process) != holder.as_ref() {
            watch = holder.as_ref().and_then(HolderWatch::new);
            if holder.as_ref().is_some_and(Process::is_dead) {
                // The holder ended between the attempt and the watch.
                continue;
            }
        }
        let unwatched = holder.is_some_and(|holder| watch.is_none() && &holder != Process::own());
        let until = busy
            .until
            .min(now + poll_interval(busy.ahead, unwatched))
            .min(deadline);
        let woken = waiter
            .parker
            .wait(watch.as_ref(), until.saturating_since(now));
        if woken == WakeReason::HolderEnded {
            ended = watch.take().map(|watch| watch.process);
        }
    }
}

/// Returns whether the error may pass while the caller waits, as a full disk does.
fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
}

/// Returns the time to the next attempt without a notification, with jitter.
fn poll_interval(ahead: u32, unwatched: bool) -> Duration {
    let longest = if ahead == 1 || unwatched {
        SECOND_POLL_INTERVAL
    } else {
        POLL_INTERVAL
    };
    longest.mul_f64(0.8 + fastrand::f64() / 5.0)
}

/// Makes one attempt in a write transaction. With `queue`, an attempt that finds the name busy leaves
/// the waiter queued under the id in `queue`.
fn attempt(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    queue: Option<(&mut Option<i64>, &Parker)>,
    now: HostInstant,
) -> rusqlite::Result<AttemptResult> {
    let key = acquisition.key;
    let mut id = queue.as_ref().and_then(|(id, _)| **id);
    if let Some(known) = id
        && !wait_queue::confirm_waiting(session, known)?
    {
        id = None;
    }
    let held = wait_queue::read(session, key)?;
    let next = match &held {
        None => NextHolder::Caller,
        Some(held)
            if acquisition.recover && held.is_of(&acquisition.owner) && held.is_live(now) =>
        {
            // The reply to an earlier attempt was lost.
            leave_queue(session, queue, id)?;
            return Ok(Ok(Acquired {
                epoch: held.epoch,
                asked_at: held.asked,
            }));
        }
        Some(held) => next_holder(session, acquisition, held, id, now)?,
    };
    if let NextHolder::Caller = next {
        leave_queue(session, queue, id)?;
        let epoch = wait_queue::take(session, acquisition, now)?;
        return Ok(Ok(Acquired {
            epoch,
            asked_at: now,
        }));
    }
    let contended = held.as_ref().is_some_and(|held| held.contended);
    let ahead = match queue {
        None => 0,
        Some((queued, parker)) => {
            let id = match id {
                Some(id) => id,
                None => wait_queue::enqueue(session, key, parker.address())?,
            };
            *queued = Some(id);
            if !contended {
                wait_queue::mark_contended(session, key)?;
            }
            wait_queue::count_ahead(session, key, id)?
        }
    };
    let (until, holder) = match (&next, held) {
        // The row is unchanged.
        (NextHolder::None, Some(held)) => (held.expires, (held.epoch != 0).then_some(held.holder)),
        _ => (now + wait_queue::GRACE, None),
    };
    Ok(Err(Busy {
        next,
        until,
        holder,
        ahead,
    }))
}

/// Returns the next holder. [`NextHolder::None`] leaves the name to its holder, or to the waiter for
/// which it is reserved.
fn next_holder(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    held: &LockRow,
    id: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<NextHolder> {
    let is_reserved = held.epoch == 0;
    if is_reserved && id == Some(held.reserved) {
        return Ok(NextHolder::Caller);
    }
    if held.is_live(now) && (!is_reserved || wait_queue::is_queued(session, held.reserved)?) {
        return Ok(NextHolder::None);
    }
    if is_reserved {
        wait_queue::mark_stale(session, held.reserved)?;
    }
    Ok(
        match wait_queue::reserve_next(session, acquisition.key, id, now)? {
            NextHolder::Reserved { id, wake } => NextHolder::Reserved { id, wake },
            NextHolder::Caller | NextHolder::None | NextHolder::Unresponsive { .. } => {
                NextHolder::Caller
            }
        },
    )
}

/// Removes a waiter that gets the name from the queue.
fn leave_queue(
    session: &Session<'_>,
    queue: Option<(&mut Option<i64>, &Parker)>,
    id: Option<i64>,
) -> rusqlite::Result<()> {
    if let Some((queued, _)) = queue {
        *queued = None;
    }
    id.map_or(Ok(()), |id| wait_queue::dequeue(session, id))
}

/// A waiter and its entry in the queue, which is removed when this is dropped.
struct Waiter<'a> {
    store: &'a Store,
    key: Key<'a>,
    parker: Arc<Parker>,
    id: Option<i64>,
    _wake: Option<CancelRegistration>,
}

impl<'a> Waiter<'a> {
    fn new(store: &'a Store, request: &AcquireRequest<'_>, key: Key<'a>) -> Self {
        let parker = store.parkers.take();
        let cancelled = Arc::clone(&parker);
        let cancel = request.cancel();
        Self {
            store,
            key,
            parker,
            id: None,
            _wake: cancel.map(|cancel| cancel.on_cancel(move || cancelled.unpark())),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let dequeued = match self.id {
            None => true,
            Some(id) => {
                let patience = self.store.briefly();
                self.store.dequeue(self.key, id, &patience).is_ok()
            }
        };
        // A row that could not be removed keeps the address of this parker. When the parker is gone,
        // the next process that notifies the address removes the row.
        if dequeued {
            self.store.parkers.keep(Arc::clone(&self.parker));
        }
    }
}
