//! What all servers say of a table in the same words.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Error, ErrorKind, Finding};
use lockkeeper_remote::{Failure, nothing_granted, senseless};

use crate::table::name::TableName;

impl TableName {
    /// The comment of a table, by which a later version knows how the table is made.
    pub const COMMENT: &'static str = "lockkeeper 1";

    /// Refuses a table with another comment.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`].
    pub fn check_comment(&self, found: &str) -> Result<(), Error> {
        if found == Self::COMMENT {
            return Ok(());
        }
        let text = format!(
            "the table {self} has the comment {found:?}, and this version of lockkeeper takes tables with {:?}: it is of another version, or is no table of lockkeeper; update this program, or name another table by `table`",
            Self::COMMENT
        );
        Err(Error::new(ErrorKind::Incompatible, text))
    }

    /// Returns the error of a table that `migration` could not make.
    pub fn not_made(&self, migration: &str, failure: Failure) -> Error {
        let error = nothing_granted(failure);
        if error.kind() != ErrorKind::PermissionDenied {
            return error;
        }
        let text = format!(
            "there is no table {self} that this user may see, and the user may not make it; let another user run: {migration}; then GRANT SELECT, INSERT, UPDATE, DELETE on it to this user"
        );
        Error::new(ErrorKind::PermissionDenied, text).with_source(error)
    }
}

/// Returns what was found of a server: its version, its clock in microseconds, asked between `before` and now, and the
/// settings by which a crash forgets what was committed last, with the advice, if there are any.
///
/// # Errors
/// The server's time is no number.
pub fn server_findings(
    version: String,
    (before, micros): (SystemTime, &str),
    forgetting: Option<(&str, &str)>,
) -> Result<Vec<Finding>, Failure> {
    let after = SystemTime::now();
    let time = micros.parse().ok().map(Duration::from_micros);
    let time = time.and_then(|since| UNIX_EPOCH.checked_add(since));
    let time = time.ok_or_else(|| Failure::Refused(senseless()))?;
    let topic = "durability";
    let durability = match forgetting {
        None => Finding::fine(topic, "the server keeps locks over a crash"),
        Some((settings, advice)) => Finding::warning(
            topic,
            format!("a crash of the server may forget what was committed last ({settings})"),
            "it forgets locks, and grants them again while they are held",
            advice,
        ),
    };
    Ok(vec![
        Finding::fine("version", version),
        Finding::clocks(before, time, after),
        durability,
    ])
}
