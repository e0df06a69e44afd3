//! SQL that a store gives to transactions of the application.

use std::borrow::Cow;
use std::fmt;

/// A backend's proof of a lease, in SQL; see [`Backend::proof`](crate::Backend::proof).
///
/// The statement returns one row with one column `held`: 1 while the lock is held, else 0. It is -1 on a server that
/// cannot have granted the lock. On a database of another dialect it fails by an error that names the dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The kind of database that the statement is for, as people write it: `MariaDB`.
    pub dialect: &'static str,
    /// One SQL statement, complete.
    pub sql: String,
    /// The statement with `?` for each value, or with `$1` and so on where the dialect has that.
    pub statement: Cow<'static, str>,
    /// The values, in order.
    pub params: Vec<ProofValue>,
    /// For a statement that fails on other databases of the dialect: one that returns, as `held`, 1 if the database has
    /// what the proof needs, else 0.
    pub fits: Option<String>,
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

/// A backend's SQL for a lock of a transaction; see
/// [`StoreInfo::transaction_lock`](crate::StoreInfo::transaction_lock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionLockSql {
    /// The kind of database that the statements are for, as people write it: `PostgreSQL`.
    pub dialect: &'static str,
    /// Tries to take the lock. Returns one row with one column `held`: the epoch of the grant, or 0 while the lock is
    /// held elsewhere. It is -1 on another server or in another database than the keeper's, and -2 while the server's
    /// clock is behind an earlier grant.
    pub attempt: String,
    /// Waits for the lock, and ends without an error when the wait is over. Returns no row.
    pub wait: String,
}
