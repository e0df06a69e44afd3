//! One transaction under the guards of one or several names, whatever the driver.

use std::slice;

use lockkeeper_core::{CommitProof, Error, ErrorKind, LockGuard, LockGuards};

use crate::connection::{OpenTransaction, Transactional};
use crate::error::CommitError;

/// Asks nothing of a transaction that cannot be asked for the lock. Each database has numbers of 64 bits, and no
/// object of another user has a part in a constant.
///
/// It fails in a transaction of PostgreSQL in which a statement has failed. `COMMIT` would roll that back, and report
/// no error.
const NO_PROOF: &str = "SELECT 4294967296 AS held";

/// Commits under a guard, or under the guards of several names.
pub trait CommitIn {
    /// Returns the guards that must hold their locks for a commit.
    fn guards(&self) -> &[LockGuard];

    /// Runs `work` in a transaction of the caller's connection, and commits it if every guard still holds its lock.
    ///
    /// The transaction is begun as a writer: `BEGIN IMMEDIATE` on SQLite. The proofs of the locks are the last steps of
    /// the transaction. If the locks are on the database's own server, a statement in the transaction proves each of
    /// them; otherwise [`LockGuard::renew`] does. If `work` panics, the transaction is rolled back, and the panic goes on.
    ///
    /// Return every error of the database from `work`. Do not commit or roll back in it, also not by a statement that
    /// commits implicitly, such as `CREATE TABLE` on MySQL. On SQLite the locks must be in another file than the data.
    /// If the work ends the transaction nevertheless, and then fails, that is [`CommitError::Unknown`]. So it is where
    /// SQLite ends it, as `INSERT OR ROLLBACK` does.
    ///
    /// # Errors
    /// [`CommitError`] says why the transaction was rolled back, or that the database did not reply to the commit. A
    /// guard that is lost already is [`CommitError::Lock`], and `work` does not run. A connection on which a transaction is
    /// open already is [`CommitError::Database`], and `work` does not run; nothing of that transaction is committed.
    fn commit_in<Kind, C: Transactional<Kind>, T, E>(
        &self,
        connection: &mut C,
        work: impl for<'c> FnOnce(&mut C::Transaction<'c>) -> Result<T, E>,
    ) -> Result<T, CommitError<E, C::Error>> {
        let guards = self.guards();
        let held = guards.iter().try_for_each(LockGuard::ensure_held);
        held.map_err(CommitError::Lock)?;
        connection.transaction_of(|transaction| {
            let value = work(transaction).map_err(CommitError::Work)?;
            for guard in guards {
                prove(guard, transaction)?;
            }
            // The proof of one lock takes time, in which another one may be lost.
            let held = guards.iter().try_for_each(LockGuard::ensure_held);
            held.map_err(CommitError::Lock)?;
            Ok(value)
        })
    }
}

impl CommitIn for LockGuard {
    fn guards(&self) -> &[LockGuard] {
        slice::from_ref(self)
    }
}

impl CommitIn for LockGuards {
    fn guards(&self) -> &[LockGuard] {
        self.guards()
    }
}

/// Proves the lock of one guard, as a last step of the transaction.
fn prove<Kind, X: OpenTransaction<Kind>, E>(
    guard: &LockGuard,
    transaction: &mut X,
) -> Result<(), CommitError<E, X::Error>> {
    let proof = proof_for::<Kind, X>(guard).map_err(CommitError::Lock)?;
    let sql = proof.as_ref().map_or(NO_PROOF, CommitProof::sql);
    let held = transaction.query(sql).map_err(CommitError::Database)?;
    let proved = match proof {
        Some(proof) if held == 1 => proof.check(held),
        // The lock is lost, or is on another server than the transaction. Its store knows.
        _ => guard.renew(),
    };
    proved.map_err(CommitError::Lock)
}

/// Returns the proof that the database of the transaction understands.
fn proof_for<Kind, X: OpenTransaction<Kind>>(
    guard: &LockGuard,
) -> Result<Option<CommitProof<'_>>, Error> {
    match guard.commit_proof() {
        Ok(proof) => Ok(Some(proof).filter(|proof| X::database().understands(proof.dialect()))),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}
