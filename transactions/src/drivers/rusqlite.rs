//! Connections of rusqlite.

use rusqlite::{Connection, Error, Transaction, TransactionBehavior};

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
        let mut transaction = begun.map_err(CommitError::Database)?;
        let result = work(&mut transaction);
        if transaction.is_autocommit() {
            // The error of this statement shows that the work ended the transaction, by a commit or a
            // rollback.
            let ended = transaction.execute_batch("COMMIT");
            ended.map_err(CommitError::Unknown)?;
        }
        // Dropping the transaction rolls it back.
        let value = result?;
        // SQLite is no server: a commit that fails has not happened.
        transaction.commit().map_err(CommitError::Database)?;
        Ok(value)
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
