//! Connections of the crate `mysql`.

use mysql::prelude::Queryable as _;
use mysql::{AccessMode, Conn, Error, PooledConn, Transaction, TxOpts};

use super::ended_by_work;
use crate::connection::{Database, OpenTransaction, Transactional};
use crate::error::CommitError;

/// The replies to `COMMIT` after which nothing is committed: lock wait timeout, deadlock (also of Galera), read-only
/// server and transaction, conflict of Group Replication. Other errors can come from a proxy that lost the server.
const REFUSALS: [u16; 6] = [1205, 1213, 1290, 1792, 1836, 3101];

/// Implements [`Transactional`] for connections that begin transactions of the crate.
macro_rules! transactional {
    ($($connection:ty),+) => {$(
        impl Transactional for $connection {
            type Error = Error;
            type Transaction<'c> = Transaction<'c>;

            fn transaction_of<T, E>(
                &mut self,
                work: impl for<'c> FnOnce(&mut Transaction<'c>) -> Result<T, CommitError<E, Error>>,
            ) -> Result<T, CommitError<E, Error>> {
                run(self.start_transaction(writer()), work)
            }
        }
    )+};
}

transactional!(Conn, PooledConn);

/// Returns the options of a transaction that writes. Within another transaction, the server refuses to set them;
/// `START TRANSACTION` alone would commit that one.
fn writer() -> TxOpts {
    TxOpts::default().set_access_mode(Some(AccessMode::ReadWrite))
}

/// Does the work in a transaction. Dropping the transaction rolls it back.
fn run<T, E>(
    begun: Result<Transaction<'_>, Error>,
    work: impl for<'c> FnOnce(&mut Transaction<'c>) -> Result<T, CommitError<E, Error>>,
) -> Result<T, CommitError<E, Error>> {
    let mut transaction = begun.map_err(CommitError::Database)?;
    let value = work(&mut transaction)
        .map_err(|error| ended_by_work(&mut transaction).map_or(error, CommitError::Unknown))?;
    match transaction.commit() {
        Ok(()) => Ok(value),
        Err(Error::MySqlError(error)) if REFUSALS.contains(&error.code) => {
            Err(CommitError::Database(Error::MySqlError(error)))
        }
        Err(error) => Err(CommitError::Unknown(error)),
    }
}

impl OpenTransaction for Transaction<'_> {
    type Error = Error;

    fn database() -> Database {
        Database::MySql
    }

    fn query(&mut self, sql: &str) -> Result<i64, Error> {
        Ok(self.query_first(sql)?.unwrap_or(0))
    }

    fn execute(&mut self, sql: &str) -> Result<(), Error> {
        self.query_drop(sql)
    }
}
