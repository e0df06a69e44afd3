//! Connections of the crate `postgres`.

use postgres::error::{Severity, SqlState};
use postgres::{Client, Error, SimpleQueryMessage, Transaction};

use crate::connection::{Database, OpenTransaction, Transactional};
use crate::error::CommitError;

impl Transactional for Client {
    type Error = Error;
    type Transaction<'c> = Transaction<'c>;

    fn transaction_of<T, E>(
        &mut self,
        work: impl for<'c> FnOnce(&mut Transaction<'c>) -> Result<T, CommitError<E, Error>>,
    ) -> Result<T, CommitError<E, Error>> {
        // Within another transaction that has read or written, PostgreSQL refuses this option, which is the default.
        let begun = self.build_transaction().deferrable(false).start();
        let mut transaction = begun.map_err(CommitError::Database)?;
        let value = match work(&mut transaction) {
            Ok(value) => value,
            // Fails if no transaction is open. Dropping the transaction ends the new one.
            Err(error) => match transaction.batch_execute("ROLLBACK AND CHAIN") {
                Err(ended) if ended.code() == Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) => {
                    return Err(CommitError::Unknown(ended));
                }
                _ => return Err(error),
            },
        };
        match transaction.commit() {
            Ok(()) => Ok(value),
            Err(error) if is_refusal(&error) => Err(CommitError::Database(error)),
            Err(error) => Err(CommitError::Unknown(error)),
        }
    }
}

/// Returns whether the server itself refused to commit.
///
/// `FATAL` is no refusal: the server ends a session so, also just after a commit.
fn is_refusal(error: &Error) -> bool {
    error.as_db_error().is_some_and(|reply| {
        reply.parsed_severity() == Some(Severity::Error)
            && *reply.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

impl OpenTransaction for Transaction<'_> {
    type Error = Error;

    fn database() -> Database {
        Database::PostgreSql
    }

    fn query(&mut self, sql: &str) -> Result<i64, Error> {
        // Without a prepared statement, which a pooler may lose.
        let rows = self.simple_query(sql)?;
        let value = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        });
        Ok(value.unwrap_or(0))
    }

    fn execute(&mut self, sql: &str) -> Result<(), Error> {
        self.batch_execute(sql)
    }
}
