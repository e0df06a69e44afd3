//! Several operations in one write transaction: the commit costs more than what is written.
//!
//! If a statement fails and leaves the transaction open, only its operation fails. What that wrote before may stay:
//! the statement that grants or passes on a name comes last.

use lockkeeper_core::{Error, ErrorKind, HostInstant, Operation};

use super::attempt::{Outcome, attempt};
use super::db::Session;
use super::error::{convert_error, unknown};
use super::holders::Key;
use super::lease::{self, Acquisition, SqliteLease};
use super::retry::BusyRetry;
use super::store::Store;
use super::wait_queue::NextHolder;

/// The largest number of operations in a transaction. They take some 400 µs, in which no other process can
/// write. 128 and 256 gave no more grants per second.
pub(super) const MAX_OPERATIONS: usize = 64;

type BatchOperation<'a> = Operation<'a, SqliteLease>;

/// Carries out a batch as [`Backend::batch`](lockkeeper_core::Backend::batch) says.
pub(super) fn batch(store: &Store, batch: &mut [BatchOperation<'_>]) {
    let retry = retry(store, batch);
    if batch.iter().any(|it| matches!(it, Operation::Acquire(_))) {
        store.listen();
    }
    if let [Operation::Acquire(it)] = batch
        && !it.request.is_resume()
    {
        // One statement takes a free name, and it is a transaction of its own.
        let acquisition = Acquisition::new(store, it.request);
        let taken = store.db.run(&retry, |session| match it.request.now() {
            now if now < it.deadline => lease::take_if_free(session, &acquisition, now),
            _ => Ok(None),
        });
        match taken {
            Ok(None) => {}
            taken => return it.answer = Some(taken),
        }
    }
    let mut next_holders = Vec::with_capacity(batch.len());
    let committed = store.db.transact(&retry, |session| {
        next_holders.clear();
        for operation in &mut *batch {
            next_holders.push(carry_out(store, session, operation)?);
        }
        Ok(())
    });
    if let Err(error) = committed {
        for operation in batch {
            fail(operation, error.clone());
        }
        return;
    }
    for (operation, next) in batch.iter().zip(next_holders) {
        store.notify_next(key(store, operation), next, &retry);
    }
}

/// Returns the retries of a batch. If the batch has an attempt, they are brief: its caller may not wait
/// through an outage.
fn retry<'s>(store: &'s Store, batch: &[BatchOperation<'_>]) -> BusyRetry<'s> {
    let clock = &*store.clock;
    let latest = batch.iter().map(Operation::deadline).max();
    let latest = latest.unwrap_or_else(|| clock.now());
    let has = |kind: fn(&BatchOperation<'_>) -> bool| batch.iter().any(kind);
    if has(|it| matches!(it, Operation::Acquire(_))) {
        BusyRetry::brief(clock, Some(latest))
    } else if has(|it| matches!(it, Operation::Release(_))) {
        BusyRetry::new(clock, latest)
    } else {
        BusyRetry::until(clock, latest)
    }
}

/// Carries out one operation, and returns the waiter to notify after the commit.
///
/// An error that leaves the transaction open is the operation's own. What the operation wrote before can
/// stay: dead waiters are removed, and the statement that grants or passes on the name comes last.
fn carry_out(
    store: &Store,
    session: &Session<'_>,
    operation: &mut BatchOperation<'_>,
) -> rusqlite::Result<NextHolder> {
    match answer(store, session, operation) {
        Err(error) if session.is_in_transaction() => {
            fail(operation, convert_error(error));
            Ok(NextHolder::None)
        }
        result => result,
    }
}

fn answer(
    store: &Store,
    session: &Session<'_>,
    operation: &mut BatchOperation<'_>,
) -> rusqlite::Result<NextHolder> {
    match operation {
        Operation::Acquire(it) => {
            let (request, now) = (it.request, it.request.now());
            if now >= it.deadline {
                it.answer = Some(Err(came_too_late(it.deadline, now)));
                return Ok(NextHolder::None);
            }
            let acquisition = Acquisition::new(store, request);
            if request.is_resume() {
                it.answer = Some(Ok(lease::resume(session, &acquisition, now)?));
                return Ok(NextHolder::None);
            }
            if let Some(grant) = lease::take_if_free(session, &acquisition, now)? {
                it.answer = Some(Ok(Some(grant)));
                return Ok(NextHolder::None);
            }
            let attempt = attempt(session, &acquisition, None, now)?;
            it.answer = Some(match attempt.outcome {
                Outcome::Answered(answer) => answer.map(Some),
                Outcome::Busy(_) => Ok(None),
            });
            Ok(attempt.next)
        }
        Operation::Renew(it) => {
            it.answer = Some(Ok(store.renew(session, it.lease, it.ttl)?));
            Ok(NextHolder::None)
        }
        Operation::Release(it) => {
            let (released, next) = store.release_in(session, it.lease)?;
            it.answer = Some(Ok(released));
            Ok(next)
        }
    }
}

/// Answers with an error: a renewal or release may have taken effect.
fn fail(operation: &mut BatchOperation<'_>, error: Error) {
    let error = match operation {
        Operation::Acquire(_) => error,
        Operation::Renew(_) | Operation::Release(_) => unknown(error),
    };
    operation.fail(error);
}

/// Returns the error of an attempt that the database could make only after its deadline.
fn came_too_late(deadline: HostInstant, now: HostInstant) -> Error {
    let late = now.saturating_since(deadline);
    Error::new(
        ErrorKind::Unavailable,
        format!("the database could be written only {late:?} after the wait was over; wait longer"),
    )
}

fn key<'s>(store: &'s Store, operation: &'s BatchOperation<'_>) -> Key<'s> {
    match operation {
        Operation::Acquire(it) => store.key(it.request.name(), it.request.mode().is_permit()),
        Operation::Renew(it) => store.key(&it.lease.name, it.lease.permits),
        Operation::Release(it) => store.key(&it.lease.name, it.lease.permits),
    }
}
