//! An application: its connection, and what its work does.

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::transactions::{CommitError, CommitIn, Transactional};
use lockkeeper::{LockKeeper, LockName};
use lockkeeper_testkit::until;

use std::fmt::Debug;
use std::time::Duration;

/// A limit far longer than anything here takes.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// A connection to a database with the table `sold`.
pub(crate) trait Application: Transactional<Error: Debug> {
    /// Inserts a row in the transaction.
    fn sell(transaction: &mut Self::Transaction<'_>) -> Result<(), Self::Error>;

    /// Runs a statement in the transaction.
    fn run(transaction: &mut Self::Transaction<'_>, sql: &str) -> Result<(), Self::Error>;

    /// Runs a statement on the connection itself.
    fn run_outside(&mut self, sql: &str);

    /// Returns the number of rows, outside of a transaction.
    fn sold(&mut self) -> i64;
}

/// What a test sees of [`CommitError`].
pub(crate) type Ended<T, E, A> = Result<T, CommitError<E, <A as Transactional>::Error>>;

/// Sells under one guard or several, and does something more before the end of the work.
pub(crate) fn sell<A: Application>(
    guard: &impl CommitIn,
    application: &mut A,
    then: impl FnOnce(),
) -> Ended<u8, A::Error, A> {
    guard.commit_in(application, |transaction| {
        A::sell(transaction)?;
        then();
        Ok(7)
    })
}

/// Takes the lock away, as an operator does.
pub(crate) fn take_away(operator: &LockKeeper, name: &LockName) {
    let soon = || SystemClock.now() + WAIT_LIMIT;
    let admin = operator.admin().unwrap();
    let held = admin.held(Some(name), soon()).unwrap().remove(0);
    assert!(admin.force_release(&held, soon()).unwrap());
    until("the lock is free", || {
        admin.held(Some(name), soon()).unwrap().is_empty()
    });
}
