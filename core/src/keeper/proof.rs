//! Proof of a hold in the transaction that the lock protects.
//!
//! A store has a proof only if its SQL answers for the moment at which it runs. SQL that reads rows cannot know
//! that the snapshot of its transaction is old, so SQLite has none.

use crate::contract::sql::{Proof, ProofValue};
use crate::error::{Error, ErrorKind};
use crate::keeper::guard::LockGuard;

/// One SQL statement by which the application's own transaction checks that a guard still holds its
/// lock. It returns one row, whose only column is the integer `held`: 1 if the lock is held.
///
/// Run it as the last statement before `COMMIT`, pass `held` to [`check`](Self::check), and roll back
/// unless that succeeds. Then a holder that was stopped for too long, or lost its session, does not
/// commit what it began in time. The proof borrows the guard, so a guard that was released cannot be
/// proved.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, LockGuard};
///
/// /// `query` runs a statement in the open transaction. Commit if this returns `Ok`, else roll back.
/// fn may_commit(guard: &LockGuard, query: impl Fn(&str) -> i64) -> Result<(), Error> {
///     let proof = guard.commit_proof()?;
///     proof.check(query(proof.sql()))
/// }
/// ```
///
/// The lock can still be lost between this statement and the commit. If that must not matter, also
/// write [`LockGuard::token`] beside the data. On tables of SQL servers (`locks=table`) nobody is granted the name before
/// the transaction has ended: there the statement locks the lock's row until then.
///
/// # The connection that it fits
/// The proof fits any connection to the server that granted the lock, whatever its user and database.
/// [`dialect`](Self::dialect) and [`location`](Self::location) name that server. No other connection
/// can commit by mistake. On another server, `held` is not 1 and [`check`](Self::check) says why. On
/// another kind of database, the statement fails and its error names the dialect.
///
/// # Stores without a proof
/// MySQL, MariaDB and PostgreSQL have a proof: `IS_USED_LOCK` and `pg_locks` show the present, whatever the
/// transaction sees. A table of theirs has one that locks its row. Leases that are rows of SQLite cannot be proved by SQL. A transaction sees the rows as
/// they were when it first read, so the statement would return 1 after the loss. This works on every store, also if
/// data and locks are on different servers:
///
/// 1. Begin the transaction as a writer, on the data's own connection: `BEGIN IMMEDIATE` on SQLite.
///    Do not attach the lock file: that would lock it for all processes.
/// 2. Do the work. Write [`LockGuard::token`] as well, and refuse smaller tokens:
///    `UPDATE product SET stock = ?1, token = ?2 WHERE id = ?3 AND token <= ?2`. Roll back if no row was
///    changed.
/// 3. As the last step, call [`LockGuard::renew`]: the keeper asks the store on a connection of its
///    own. Roll back if it fails, also if the outcome is unknown. Afterwards a fixed lease, too,
///    has a full ttl again.
/// 4. Commit.
///
/// A program commits late only if it is stopped between steps 3 and 4 for a whole lease. Then the
/// tokens decide.
#[derive(Clone, Debug)]
pub struct CommitProof<'g> {
    proof: Proof,
    guard: &'g LockGuard,
}

impl<'g> CommitProof<'g> {
    pub(crate) fn new(proof: Proof, guard: &'g LockGuard) -> Self {
        Self { proof, guard }
    }

    /// Returns the statement with its values in it, quoted as the store needs it.
    pub fn sql(&self) -> &str {
        &self.proof.sql
    }

    /// Returns the statement with `?` for each value (PostgreSQL: `$1` and so on), to be prepared.
    pub fn statement(&self) -> &str {
        &self.proof.statement
    }

    /// Returns the values of [`statement`](Self::statement), in order.
    pub fn params(&self) -> &[ProofValue] {
        &self.proof.params
    }

    /// Returns a statement to run before [`sql`](Self::sql) in a transaction that may be elsewhere than the lock. Its only
    /// column `held` is 1 if the database has the table that the proof reads. `None` if the proof needs no table.
    pub fn fits(&self) -> Option<&str> {
        self.proof.fits.as_deref()
    }

    /// Returns the kind of database that understands the statement: `MySQL`, `MariaDB` or `PostgreSQL`.
    pub fn dialect(&self) -> &'static str {
        self.proof.dialect
    }

    /// Returns the URL, without secrets, of the server on which the statement has to run:
    /// [`LockKeeper::location`](crate::LockKeeper::location).
    pub fn location(&self) -> String {
        self.guard.location()
    }

    /// Returns `Ok` if `held`, which the statement returned, allows the commit.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock is not held any more, or if the statement ran on another server
    /// than the lock's: roll back.
    pub fn check(&self, held: i64) -> Result<(), Error> {
        match held {
            1 => self.guard.ensure_held(),
            -1 => Err(self.lost(&format!(
                "the proof ran on another server than {}, or that server was restarted after it had granted the lock; roll back, and connect data and locks to one {} server",
                self.location(),
                self.dialect(),
            ))),
            _ => Err(self.lost(
                "the server does not hold the lock for this guard any more; roll back",
            )),
        }
    }

    fn lost(&self, text: &str) -> Error {
        self.guard.error(ErrorKind::Lost, text)
    }
}
