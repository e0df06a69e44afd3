//! Connections of rusqlite.

use rusqlite::{Connection, DropBehavior, Error, Transaction, TransactionBehavior};

use crate::connection::{Database, OpenTransaction, Transactional};
use crate::error::CommitError;

impl Transactional for Connection {
    type Error = Error;
    type Transaction<'c> = Transaction<'c>;

    fn transaction_of<T, E>(
        &mut self,
        work: impl for<'c> FnOnce(&mut Transaction<'c>) -> Result<T, CommitError<E, Error>>,
    ) -> Result<T, CommitError<E, Error>> {
        let begun = self.transaction_with_behavior(TransactionBehavior::Immediate);
        let mut transaction = Open(begun.map_err(CommitError::Database)?);
        let result = work(&mut transaction.0);
        let commit = || transaction.0.execute_batch("COMMIT");
        if transaction.0.is_autocommit() {
            // The error of this statement shows that the work ended the transaction, by a commit or a
            // rollback.
            commit().map_err(CommitError::Unknown)?;
        }
        let value = result?;
        // SQLite is no server: a commit that fails has not happened.
        commit().map_err(CommitError::Database)?;
        Ok(value)
    }
}

/// A transaction that is rolled back when it is dropped, whatever its work has set.
struct Open<'c>(Transaction<'c>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.set_drop_behavior(DropBehavior::Rollback);
    }
}

impl OpenTransaction for Transaction<'_> {
    type Error = Error;

    fn database() -> Database {
        Database::Sqlite
    }

    fn query(&mut self, sql: &str) -> Result<i64, Error> {
        self.query_row(sql, (), |row| row.get(0))
    }

    fn execute(&mut self, sql: &str) -> Result<(), Error> {
        self.execute_batch(sql)
    }
}
