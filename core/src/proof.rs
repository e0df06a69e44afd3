//! Proving a hold where the data is: in the transaction that the lock protects.

use std::fmt;
use std::marker::PhantomData;

/// What a lease can say to the data's own store; see [`Lease::proof`](crate::Lease::proof).
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
