//! Proof of a hold in the transaction that the lock protects.

use std::fmt;
use std::marker::PhantomData;

/// A backend's proof of a lease, in SQL; see [`Backend::proof`](crate::Backend::proof).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// One SQL statement, complete.
    pub sql: String,
    /// The statement with `?` for each value.
    pub statement: &'static str,
    /// The values, in order.
    pub params: Vec<ProofValue>,
}

/// A value of a [`Proof`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofValue {
    /// A text.
    Text(String),
    /// An integer.
    Integer(i64),
}

impl fmt::Display for ProofValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Integer(number) => number.fmt(f),
        }
    }
}

/// One SQL statement by which the application's own transaction checks that a guard still holds its
/// lock. It returns one row with one number: 1 if the lock is held, else 0.
///
/// Run it as the last statement before `COMMIT`, and roll back unless it returned 1. Then a holder
/// that was stopped for too long, or lost its session, does not commit what it began in time. The
/// proof borrows the guard, so a guard that was released cannot be proved.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, LockGuard};
///
/// /// `query` runs a statement in the open transaction. Commit if this returns true, else roll back.
/// fn may_commit(guard: &LockGuard, query: impl Fn(&str) -> i64) -> Result<bool, Error> {
///     let proof = guard.commit_proof()?;
///     Ok(query(proof.sql()) == 1)
/// }
/// ```
///
/// The lock can still be lost between this statement and the commit. If that must not matter, also
/// write [`LockGuard::token`](crate::LockGuard::token) beside the data.
///
/// # Stores without a proof
/// MySQL and MariaDB have a proof: `IS_USED_LOCK` answers for the time at which it is asked. Leases
/// that are rows, as on SQLite, cannot be proved by SQL: a transaction sees them as they were when it
/// first read, so such a statement would return 1 after the loss. On every store, also if data and
/// locks are on different servers, this works:
///
/// 1. Begin the transaction as a writer, on the data's own connection: `BEGIN IMMEDIATE` on SQLite.
///    Do not attach the lock file: that would lock it for all processes.
/// 2. Do the work. Write [`LockGuard::token`](crate::LockGuard::token) as well, and refuse smaller
///    tokens: `UPDATE product SET stock = ?1, token = ?2 WHERE id = ?3 AND token <= ?2`. Roll back if no
///    row was changed.
/// 3. As the last step, [`LockGuard::renew`](crate::LockGuard::renew): the keeper asks the store on a
///    connection of its own. Roll back if it fails, also if the outcome is unknown. A fixed lease has
///    a full ttl again afterwards, too.
/// 4. Commit.
///
/// Only a program that is stopped between steps 3 and 4 for a whole lease commits late, and then the
/// tokens decide.
#[derive(Clone, Debug)]
pub struct CommitProof<'g> {
    proof: Proof,
    guard: PhantomData<&'g ()>,
}

impl CommitProof<'_> {
    pub(crate) fn new(proof: Proof) -> Self {
        Self {
            proof,
            guard: PhantomData,
        }
    }

    /// Returns the statement with its values in it, quoted as the store needs it.
    pub fn sql(&self) -> &str {
        &self.proof.sql
    }

    /// Returns the statement with `?` for each value, to be prepared.
    pub fn statement(&self) -> &'static str {
        self.proof.statement
    }

    /// Returns the values of [`statement`](Self::statement), in order.
    pub fn params(&self) -> &[ProofValue] {
        &self.proof.params
    }
}
