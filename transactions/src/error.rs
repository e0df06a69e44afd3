//! How a transaction under a lock can end without a commit.

use std::error::Error as StdError;
use std::fmt;

use lockkeeper_core::Error;

/// Why [`commit_in`](crate::CommitIn::commit_in) did not commit, or cannot know whether it did.
///
/// `E` is the error of the work, and `D` that of the database's driver.
#[derive(Clone, Debug)]
pub enum CommitError<E, D> {
    /// The work failed with this error, and the transaction was rolled back.
    Work(E),
    /// The lock could not be proved, and the transaction was rolled back.
    ///
    /// [`ErrorKind::Lost`](lockkeeper_core::ErrorKind::Lost) if it is lost: another holder may have it. With another
    /// kind, the store did not reply in time.
    Lock(Error),
    /// The database refused to begin the transaction, to run its last statement, or to commit. Nothing was committed.
    Database(D),
    /// The transaction is committed or rolled back: the database did not reply to the commit, or the work itself ended
    /// the transaction. Look at the data before the work is repeated.
    Unknown(D),
}

impl<E, D> CommitError<E, D> {
    /// Returns whether it is certain that nothing was committed.
    pub fn is_rolled_back(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

impl<E: fmt::Display, D: fmt::Display> fmt::Display for CommitError<E, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "rolled back, because the work failed: {error}"),
            Self::Lock(error) => write!(
                f,
                "rolled back, because the lock could not be proved: {error}"
            ),
            Self::Database(error) => write!(f, "rolled back by the database: {error}"),
            Self::Unknown(error) => write!(
                f,
                "the database did not reply to the commit, or the work ended the transaction itself, so it is committed or rolled back; look at the data before you repeat it: {error}"
            ),
        }
    }
}

impl<E: StdError + 'static, D: StdError + 'static> StdError for CommitError<E, D> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Work(error) => error.source(),
            Self::Lock(error) => error.source(),
            Self::Database(error) | Self::Unknown(error) => error.source(),
        }
    }
}
