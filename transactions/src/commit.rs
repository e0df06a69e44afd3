//! One transaction under the guards of one or several names, whatever the driver.

use std::iter;

use lockkeeper_core::{CommitProof, Error, ErrorKind, LockGuard, LockGuards};

use crate::connection::{OpenTransaction, Transactional};
use crate::error::CommitError;

/// The last statement of a transaction on a database that cannot prove the lock. It only returns a constant of
/// 64 bits, which every database has, and which no user's object can replace.
///
/// On PostgreSQL it fails if an earlier statement of the transaction failed. `COMMIT` would then roll back without
/// an error.
const NO_PROOF: &str = "SELECT 4294967296 AS held";

/// Commits under a guard, or under several guards: those of [`LockGuards`], or `[&hall, &seat]`.
pub trait CommitIn {
    /// Returns the guards that must hold their locks for a commit.
    fn guards(&self) -> impl Iterator<Item = &LockGuard>;

    /// Runs `work` in a transaction of the caller's connection, and commits it if every guard still holds its lock.
    ///
    /// On SQLite the transaction begins with `BEGIN IMMEDIATE`. The proofs of the locks are its last steps. If a
    /// lock is on the database's own server, a statement in the transaction proves it; otherwise
    /// [`LockGuard::renew`] does. If `work` panics, the transaction is rolled back, and the panic continues.
    ///
    /// Return every error of the database from `work`. Do not commit or roll back in `work`, and run no statement
    /// that commits implicitly, such as `CREATE TABLE` on MySQL. On SQLite the locks must be in another file than
    /// the data. If the work ends the transaction and then fails, the result is [`CommitError::Unknown`]. The
    /// result is the same if SQLite ends the transaction, as `INSERT OR ROLLBACK` does.
    ///
    /// # Errors
    /// [`CommitError`] says why the transaction was rolled back, or that the database did not reply to the commit.
    /// If a guard is lost already, or there is none, the error is [`CommitError::Lock`]. If the connection has an open
    /// transaction, the error is [`CommitError::Database`], and nothing of that transaction is committed. In these cases
    /// `work` does not run.
    fn commit_in<Kind, C: Transactional<Kind>, T, E>(
        &self,
        connection: &mut C,
        work: impl for<'c> FnOnce(&mut C::Transaction<'c>) -> Result<T, E>,
    ) -> Result<T, CommitError<E, C::Error>> {
        if self.guards().next().is_none() {
            let text = "no guard was given; commit under at least one";
            return Err(CommitError::Lock(Error::new(ErrorKind::InvalidName, text)));
        }
        let ensure_held = || self.guards().try_for_each(LockGuard::ensure_held);
        ensure_held().map_err(CommitError::Lock)?;
        connection.transaction_of(|transaction| {
            let value = work(transaction).map_err(CommitError::Work)?;
            for guard in self.guards() {
                prove(guard, transaction)?;
            }
            // While one lock is proved, another one may be lost.
            ensure_held().map_err(CommitError::Lock)?;
            Ok(value)
        })
    }
}

impl CommitIn for LockGuard {
    fn guards(&self) -> impl Iterator<Item = &LockGuard> {
        iter::once(self)
    }
}

impl CommitIn for LockGuards {
    fn guards(&self) -> impl Iterator<Item = &LockGuard> {
        self.guards().iter()
    }
}

impl CommitIn for [&LockGuard] {
    fn guards(&self) -> impl Iterator<Item = &LockGuard> {
        self.iter().copied()
    }
}

impl<const N: usize> CommitIn for [&LockGuard; N] {
    fn guards(&self) -> impl Iterator<Item = &LockGuard> {
        self.iter().copied()
    }
}

/// Proves the lock of one guard, as one of the transaction's last steps.
fn prove<Kind, X: OpenTransaction<Kind>, E>(
    guard: &LockGuard,
    transaction: &mut X,
) -> Result<(), CommitError<E, X::Error>> {
    let mut proof = proof_for::<Kind, X>(guard).map_err(CommitError::Lock)?;
    if let Some(fits) = proof.as_ref().and_then(CommitProof::fits)
        && transaction.query(fits).map_err(CommitError::Database)? != 1
    {
        proof = None;
    }
    let sql = proof.as_ref().map_or(NO_PROOF, CommitProof::sql);
    let held = transaction.query(sql).map_err(CommitError::Database)?;
    let proved = match proof {
        Some(proof) if held == 1 => proof.check(held),
        // The lock is lost, or is on another server than the transaction. Only its store can tell which.
        _ => guard.renew(),
    };
    proved.map_err(CommitError::Lock)
}

/// Returns the guard's proof if the database of the transaction understands it.
fn proof_for<Kind, X: OpenTransaction<Kind>>(
    guard: &LockGuard,
) -> Result<Option<CommitProof<'_>>, Error> {
    match guard.commit_proof() {
        Ok(proof) => Ok(Some(proof).filter(|proof| X::database().understands(proof.dialect()))),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}
