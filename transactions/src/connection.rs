//! What a connection of the application can do: run a transaction, and statements in it.

use crate::error::CommitError;

/// The kind of database that a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Database {
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL.
    PostgreSql,
    /// SQLite.
    Sqlite,
}

impl Database {
    /// Returns whether it understands a commit proof of this
    /// [`dialect`](lockkeeper_core::CommitProof::dialect).
    pub(crate) fn understands(self, dialect: &str) -> bool {
        match self {
            Self::MySql => matches!(dialect, "MySQL" | "MariaDB"),
            Self::PostgreSql => dialect == "PostgreSQL",
            Self::Sqlite => false,
        }
    }
}

/// A connection of the application on which [`commit_in`](crate::CommitIn::commit_in) runs a transaction.
///
/// `Kind` is inferred. It keeps the implementation for all connections of Diesel apart from that for single types.
pub trait Transactional<Kind = ()>: 'static {
    /// The error of the driver.
    type Error;
    /// What the work gets: the open transaction.
    type Transaction<'c>: OpenTransaction<Kind, Error = Self::Error>;

    /// Begins a transaction as a writer, calls `work` with it, and commits if `work` succeeds.
    ///
    /// If `work` returns an error or panics, the transaction is rolled back.
    ///
    /// # Errors
    /// The error of `work`; [`CommitError::Database`] if the transaction could not be begun or was certainly not
    /// committed; [`CommitError::Unknown`] if it may be committed.
    fn transaction_of<T, E>(
        &mut self,
        work: impl for<'c> FnOnce(&mut Self::Transaction<'c>) -> Result<T, CommitError<E, Self::Error>>,
    ) -> Result<T, CommitError<E, Self::Error>>;
}

/// A transaction that is open on a connection of the application.
pub trait OpenTransaction<Kind = ()> {
    /// The error of the driver.
    type Error;

    /// Returns the kind of database.
    fn database() -> Database;

    /// Runs a statement that returns one row with one integer of 64 bits, named `held`, and returns that.
    ///
    /// # Errors
    /// What the database or the driver reports.
    fn query(&mut self, sql: &str) -> Result<i64, Self::Error>;

    /// Runs a statement that returns no row.
    ///
    /// # Errors
    /// What the database or the driver reports.
    fn execute(&mut self, sql: &str) -> Result<(), Self::Error>;
}
