//! Proving a hold where the data is: in the transaction that the lock protects.

use std::fmt;
use std::marker::PhantomData;

/// What a lease can say to the data's own store; see [`Backend::proof`](crate::Backend::proof).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// One SQL statement, complete.
    pub sql: String,
    /// The same with `?` for each value.
    pub statement: &'static str,
    /// The values, in order.
    pub params: Vec<ProofValue>,
}

/// A value of a [`Proof`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofValue {
    /// A text.
    Text(String),
    /// A whole number.
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

/// One SQL statement that asks the store, from within the application's own transaction, whether
/// the guard that it was made for still holds: it gives one row with one number, 1 where it does
/// and 0 where it does not.
///
/// Run it as the last statement before `COMMIT`, and roll back unless it gave 1: then a holder that
/// was stopped for too long, or whose session was ended, does not commit what it began in time. It
/// borrows the guard, so that a guard which was released cannot be proved.
///
/// What is left is the time between this statement and the commit. Where that must be closed, too,
/// write [`LockGuard::token`](crate::LockGuard::token) beside the data as well.
///
/// # Stores without a proof
/// MySQL and MariaDB have a proof: `IS_USED_LOCK` answers for the moment at which it is asked. Leases
/// that are rows, as on SQLite, cannot be proved by SQL: a transaction sees them as they were when it
/// first read, however long ago that was. Such a statement would say 1 after the loss, so there is
/// none. On every store, also where data and locks are on different servers, this works:
///
/// 1. Begin the transaction as a writer, on the data's own connection: `BEGIN IMMEDIATE` on SQLite.
///    Do not attach the lock file: that would lock it for all processes.
/// 2. Do the work. Write [`LockGuard::token`](crate::LockGuard::token) along, and refuse smaller ones:
///    `UPDATE product SET stock = ?1, token = ?2 WHERE id = ?3 AND token <= ?2`. Roll back where no row
///    was changed.
/// 3. As the last step, [`LockGuard::renew`](crate::LockGuard::renew): the keeper asks the store on a
///    connection of its own. Roll back where it fails; that includes an outcome that is unknown. It
///    gives a fixed lease a full ttl again, too.
/// 4. Commit.
///
/// Between the third step and the fourth a whole lease lies: only a program that is stopped there for
/// that long commits late, and the token of a later holder's write refuses that of an earlier one.
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

    /// The statement with its values in it. They are quoted as the store needs it.
    pub fn sql(&self) -> &str {
        &self.proof.sql
    }

    /// The statement with `?` for each value, to be prepared.
    pub fn statement(&self) -> &'static str {
        self.proof.statement
    }

    /// The values of [`statement`](Self::statement), in order.
    pub fn params(&self) -> &[ProofValue] {
        &self.proof.params
    }
}
