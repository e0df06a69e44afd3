//! Connections of Diesel.

use std::any::TypeId;

use diesel::connection::{
    Connection, LoadConnection, TransactionDepthChange, TransactionManager,
    TransactionManagerStatus,
};
use diesel::mysql::Mysql;
use diesel::pg::Pg;
use diesel::query_builder::SqlQuery;
use diesel::query_dsl::LoadQuery;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::{QueryResult, QueryableByName, RunQueryDsl as _};

use super::ended_by_work;
use crate::connection::{Database, OpenTransaction, Transactional};
use crate::error::CommitError;

/// The kind of all connections of Diesel: see [`Transactional`](crate::Transactional).
#[derive(Clone, Copy, Debug)]
pub enum DieselKind {}

/// The row of a statement.
#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    held: i64,
}

impl<C> Transactional<DieselKind> for C
where
    C: LoadConnection + 'static,
    for<'q> SqlQuery: LoadQuery<'q, C, Row>,
{
    type Error = Error;
    type Transaction<'c> = C;

    fn transaction_of<T, E>(
        &mut self,
        work: impl for<'c> FnOnce(&mut C) -> Result<T, CommitError<E, Error>>,
    ) -> Result<T, CommitError<E, Error>> {
        let transaction = Open::begin(self).map_err(CommitError::Database)?;
        let result = work(&mut *transaction.connection);
        if was_ended(&mut *transaction.connection, result.is_err()) {
            return Err(CommitError::Unknown(Error::NotInTransaction));
        }
        let value = result?;
        transaction.commit()?;
        Ok(value)
    }
}

impl<C> OpenTransaction<DieselKind> for C
where
    C: LoadConnection + 'static,
    for<'q> SqlQuery: LoadQuery<'q, C, Row>,
{
    type Error = Error;

    fn database() -> Database {
        database_of::<C>()
    }

    fn query(&mut self, sql: &str) -> QueryResult<i64> {
        check_open(self)?;
        let row: Row = diesel::sql_query(sql).get_result(self)?;
        Ok(row.held)
    }

    fn execute(&mut self, sql: &str) -> QueryResult<()> {
        check_open(self)?;
        self.batch_execute(sql)
    }
}

/// Returns the kind of database. A backend that is neither PostgreSQL nor MySQL counts as SQLite: Diesel has a type
/// for SQLite only if SQLite is linked.
fn database_of<C: Connection + 'static>() -> Database {
    let backend = TypeId::of::<C::Backend>();
    if backend == TypeId::of::<Pg>() {
        Database::PostgreSql
    } else if backend == TypeId::of::<Mysql>() {
        Database::MySql
    } else {
        Database::Sqlite
    }
}

/// A transaction that is rolled back when it is dropped.
struct Open<'c, C: Connection + 'static> {
    connection: &'c mut C,
}

impl<'c, C: Connection + 'static> Open<'c, C> {
    /// Begins a transaction, as a writer on SQLite.
    fn begin(connection: &'c mut C) -> QueryResult<Self> {
        if depth(connection)? > 0 {
            return Err(Error::AlreadyInTransaction);
        }
        // On a server: a statement that fails within a transaction that Diesel does not know of.
        let begin = match database_of::<C>() {
            Database::Sqlite => "BEGIN IMMEDIATE",
            Database::PostgreSql => "START TRANSACTION NOT DEFERRABLE",
            Database::MySql => "SET TRANSACTION READ WRITE",
        };
        connection.batch_execute(begin)?;
        if database_of::<C>() != Database::MySql {
            if let TransactionManagerStatus::Valid(status) = status(connection) {
                status.change_transaction_depth(TransactionDepthChange::IncreaseDepth)?;
            }
        } else {
            C::TransactionManager::begin_transaction(connection)?;
        }
        Ok(Self { connection })
    }

    fn commit<E>(self) -> Result<(), CommitError<E, Error>> {
        match C::TransactionManager::commit_transaction(&mut *self.connection) {
            Ok(()) => Ok(()),
            Err(error) if is_refusal(database_of::<C>(), &error) => {
                Err(CommitError::Database(error))
            }
            Err(error) => Err(CommitError::Unknown(error)),
        }
    }
}

impl<C: Connection + 'static> Drop for Open<'_, C> {
    fn drop(&mut self) {
        // After a panic, savepoints of nested transactions may be open.
        while depth(self.connection).is_ok_and(|depth| depth > 0) {
            if C::TransactionManager::rollback_transaction(self.connection).is_err() {
                return;
            }
        }
    }
}

fn status<C: Connection>(connection: &mut C) -> &mut TransactionManagerStatus {
    C::TransactionManager::transaction_manager_status_mut(connection)
}

/// Returns the depth of nested transactions; 0 if none is open.
fn depth<C: Connection>(connection: &mut C) -> QueryResult<u32> {
    let depth = status(connection).transaction_depth()?;
    Ok(depth.map_or(0, u32::from))
}

/// Returns whether the work ended the transaction itself. `has_failed` says whether the work failed.
fn was_ended<C>(connection: &mut C, has_failed: bool) -> bool
where
    C: LoadConnection + 'static,
    for<'q> SqlQuery: LoadQuery<'q, C, Row>,
{
    match (depth(connection), database_of::<C>()) {
        (Ok(0), _) => true,
        // Diesel knows the status of a connection to PostgreSQL. A broken connection has no transaction.
        (Err(_), _) | (Ok(_), Database::PostgreSql) => false,
        // `BEGIN` fails within a transaction. If it succeeds, dropping the value ends the new transaction.
        (Ok(_), Database::Sqlite) => connection.batch_execute("BEGIN").is_ok(),
        (Ok(_), Database::MySql) => has_failed && ended_by_work(connection).is_some(),
    }
}

/// Refuses a connection without a transaction: there the end of the statement would release the lock.
fn check_open<C: Connection>(connection: &mut C) -> QueryResult<()> {
    match depth(connection)? {
        0 => Err(Error::NotInTransaction),
        _ => Ok(()),
    }
}

/// Returns whether the database itself refused to commit.
///
/// Diesel rolls back after a commit that failed. A server that replied to the rollback has replied to the commit,
/// too. On MySQL a proxy may have sent the reply, so only known errors count there.
fn is_refusal(database: Database, error: &Error) -> bool {
    use DatabaseErrorKind::{
        CheckViolation, ClosedConnection, ForeignKeyViolation, NotNullViolation,
        ReadOnlyTransaction, SerializationFailure, UnableToSendCommand, UniqueViolation,
    };
    match (database, error) {
        (Database::Sqlite, _) => true,
        (Database::PostgreSql, Error::DatabaseError(ClosedConnection | UnableToSendCommand, _)) => {
            false
        }
        (Database::PostgreSql, Error::DatabaseError(..)) => true,
        (Database::MySql, Error::DatabaseError(kind, _)) => matches!(
            kind,
            CheckViolation
                | ForeignKeyViolation
                | NotNullViolation
                | ReadOnlyTransaction
                | SerializationFailure
                | UniqueViolation
        ),
        _ => false,
    }
}
