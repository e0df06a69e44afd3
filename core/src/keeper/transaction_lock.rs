//! A lock that lives as long as a transaction of the application.

use crate::contract::sql::TransactionLockSql;
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::name::LockName;
use crate::token::FencingToken;

/// What [`TransactionLockSql::attempt`] returns while the server's clock is behind an earlier grant.
const CLOCK_SET_BACK: i64 = -2;

/// The statements by which a transaction of the application takes a lock of a keeper, for as long as the transaction
/// lives.
///
/// Run [`attempt`](Self::attempt), and pass what it returns to [`check`](Self::check). If that is `None`, run
/// [`wait`](Self::wait), and then `attempt` once more. `LockInTransaction` of the module `transactions` does all that.
#[derive(Clone, Debug)]
pub struct TransactionLock<'k> {
    keeper: &'k LockKeeper,
    name: LockName,
    sql: TransactionLockSql,
}

impl<'k> TransactionLock<'k> {
    pub(crate) fn new(keeper: &'k LockKeeper, name: LockName, sql: TransactionLockSql) -> Self {
        Self { keeper, name, sql }
    }

    /// Returns the statement that tries to take the lock. It returns one row with the integer `held`.
    pub fn attempt(&self) -> &str {
        &self.sql.attempt
    }

    /// Returns the statement that waits for the lock. It returns no row, and no error if the lock stays busy.
    pub fn wait(&self) -> &str {
        &self.sql.wait
    }

    /// Returns the kind of database that understands the statements: `PostgreSQL`.
    pub fn dialect(&self) -> &'static str {
        self.sql.dialect
    }

    /// Returns the token of the lock if the transaction holds it. `None` if another holder has it.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] if the transaction is on another server or in another database than the
    /// keeper. [`ErrorKind::Unavailable`] while the server's clock is behind an earlier grant of the keeper.
    pub fn check(&self, held: i64) -> Result<Option<FencingToken>, Error> {
        match u64::try_from(held) {
            Ok(0) => Ok(None),
            Ok(epoch) => {
                let token = self.keeper.first_token(epoch);
                let token = token.map_err(|error| self.located(error))?;
                self.keeper.engine.provider.note_transaction_epoch(epoch);
                Ok(Some(token))
            }
            Err(_) if held == CLOCK_SET_BACK => Err(self.located(Error::new(
                ErrorKind::Unavailable,
                "the server's clock was set back, and nothing is granted before it has caught up, since tokens would not grow; wait, or raise `epoch_offset` everywhere and restart the programs",
            ))),
            Err(_) => Err(self.located(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the transaction is on another server or in another database than {}, and excludes none of its holders; connect both to one database, or hold a guard of the keeper",
                    self.keeper.location(),
                ),
            ))),
        }
    }

    fn located(&self, error: Error) -> Error {
        self.keeper.engine.located(&self.name, error)
    }
}
