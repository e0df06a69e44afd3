//! Locks that live as long as a transaction of the application.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use lockkeeper_core::{AsLockName, Error, ErrorKind, FencingToken, LockKeeper, TransactionLock};

use crate::connection::OpenTransaction;

/// Takes locks that live as long as a transaction.
pub trait LockInTransaction {
    /// Takes the exclusive lock of a name in an open transaction of PostgreSQL, and holds it until the transaction
    /// ends. Waits for at most `wait`.
    ///
    /// It is the same lock as that of [`LockKeeper::lock`]. So it excludes the guards of all keepers of the
    /// namespace. The transaction must be on the keeper's server, in its database. There is no guard and no lease.
    /// The commit or the rollback releases the lock. If the connection ends, the server ends the transaction and
    /// the lock together, so the lock is never lost before the work. A rollback to a savepoint releases a lock
    /// that was taken after it. So take the lock in the outermost transaction.
    ///
    /// The returned token is larger than that of every earlier grant. Write it beside the data if guards write
    /// there, too.
    ///
    /// If the lock is busy, the transaction stays open. `lock_timeout` keeps its value. Do not take the lock in a
    /// transaction of the level `REPEATABLE READ` or above that reads afterwards. Its reads show the data as they
    /// were before the wait.
    ///
    /// # Errors
    /// [`TransactionLockError::Lock`], with one of these kinds:
    /// - [`ErrorKind::TimedOut`] if another holder had the lock until the end of the wait.
    /// - [`ErrorKind::Unsupported`] if the store is not PostgreSQL.
    /// - [`ErrorKind::Incompatible`] if the transaction is on another server or in another database.
    /// - [`ErrorKind::Unavailable`] while the server's clock was set back behind an earlier grant of the keeper.
    ///
    /// [`TransactionLockError::Database`] if a statement failed, such as by a deadlock with another transaction.
    /// Then roll back.
    fn lock_in_transaction<Kind, X: OpenTransaction<Kind>>(
        &self,
        transaction: &mut X,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<FencingToken, TransactionLockError<X::Error>>;
}

impl LockInTransaction for LockKeeper {
    fn lock_in_transaction<Kind, X: OpenTransaction<Kind>>(
        &self,
        transaction: &mut X,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<FencingToken, TransactionLockError<X::Error>> {
        let name = name.as_lock_name().map_err(TransactionLockError::Lock)?;
        let error = |kind, text: String| {
            let error = Error::new(kind, text).with_name(&*name);
            TransactionLockError::Lock(error.with_backend(self.backend()))
        };
        let lock = self.transaction_lock(&*name, wait);
        let lock = lock.map_err(TransactionLockError::Lock)?;
        if !X::database().understands(lock.dialect()) {
            let text = "the transaction is not on the keeper's server; hold a guard, and commit under it with `commit_in`";
            return Err(error(ErrorKind::Unsupported, text.to_owned()));
        }
        if let Some(token) = attempt(transaction, &lock)? {
            return Ok(token);
        }
        if !wait.is_zero() {
            let waited = transaction.execute(lock.wait());
            waited.map_err(TransactionLockError::Database)?;
            if let Some(token) = attempt(transaction, &lock)? {
                return Ok(token);
            }
        }
        let text = "another holder had the lock for all of";
        let text = format!("{text} {wait:?}; wait longer, or try later");
        Err(error(ErrorKind::TimedOut, text))
    }
}

fn attempt<Kind, X: OpenTransaction<Kind>>(
    transaction: &mut X,
    lock: &TransactionLock<'_>,
) -> Result<Option<FencingToken>, TransactionLockError<X::Error>> {
    let held = transaction.query(lock.attempt());
    let held = held.map_err(TransactionLockError::Database)?;
    lock.check(held).map_err(TransactionLockError::Lock)
}

/// The error of [`lock_in_transaction`](LockInTransaction::lock_in_transaction), which did not take the lock.
///
/// `D` is the error of the database's driver.
#[derive(Clone, Debug)]
pub enum TransactionLockError<D> {
    /// The lock is busy, or this transaction cannot take it. The transaction is still open.
    Lock(Error),
    /// A statement failed: roll back.
    Database(D),
}

impl<D: fmt::Display> fmt::Display for TransactionLockError<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Database(error) => {
                write!(
                    f,
                    "a statement that takes the lock failed, roll back: {error}"
                )
            }
        }
    }
}

impl<D: StdError + 'static> StdError for TransactionLockError<D> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Lock(error) => error.source(),
            Self::Database(error) => error.source(),
        }
    }
}
