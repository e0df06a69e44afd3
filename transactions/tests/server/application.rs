//! An application: its connection, and what its work does.

use std::fmt::Debug;
use std::time::Duration;

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::transactions::{CommitError, CommitIn, OpenTransaction as _, Transactional};
use lockkeeper::{LockKeeper, LockName};
use lockkeeper_testkit::until;

/// A limit far longer than anything here takes.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// How a lock in the database of the data is proved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Proved {
    /// By a statement in the transaction, which costs the keeper no request.
    ByStatement,
    /// By a renewal.
    ByRenewal,
}

/// A connection to a database with the table `sold`.
pub(crate) trait Application<Kind = ()>: Transactional<Kind, Error: Debug> {
    const PROVED: Proved = Proved::ByStatement;
    /// Inserts a row.
    const SELL: &'static str;
    /// Commits in the middle of the work.
    const COMMIT: &'static str = "COMMIT";

    /// Runs a statement on the connection itself.
    fn run_outside(&mut self, sql: &str);

    /// Returns the number of rows.
    fn sold(&mut self) -> i64 {
        let count = "SELECT count(*) AS held FROM sold";
        let counted: Ended<_, (), Self, Kind> = self
            .transaction_of(|transaction| transaction.query(count).map_err(CommitError::Database));
        counted.unwrap()
    }
}

/// How a transaction of [`commit_in`](CommitIn::commit_in) ended.
pub(crate) type Ended<T, E, A, Kind = ()> =
    Result<T, CommitError<E, <A as Transactional<Kind>>::Error>>;

/// Sells under one guard or several, and does something more before the end of the work.
pub(crate) fn sell<Kind, A: Application<Kind>>(
    guard: &impl CommitIn,
    application: &mut A,
    then: impl FnOnce(),
) -> Ended<u8, A::Error, A, Kind> {
    guard.commit_in(application, |transaction| {
        transaction.execute(A::SELL)?;
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
