//! Connections that the application makes or lends: their checks, and how they are returned.

use lockkeeper_remote::{Failure, senseless};
use mysql::Row;

use crate::connection::Connection;
use crate::failure::incompatible;
use crate::statements::dialect::Dialect;
use crate::statements::{number, text};

/// The state of a session before it was used for locks.
#[derive(Debug)]
pub(crate) struct Before {
    /// The statement that sets the session's limits again.
    pub(crate) restore: String,
}

impl Dialect {
    /// Asks for what [`Before::read`] reads.
    fn ask_before(self) -> String {
        let limit = self.statement_limit();
        format!(
            "SELECT CONNECTION_ID() + 0, @@SESSION.autocommit, @@SESSION.wait_timeout, @@SESSION.{limit}, CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir)"
        )
    }
}

/// It succeeds only outside of a transaction. It sets the default for the next transaction.
const BETWEEN_TRANSACTIONS: &str = "SET TRANSACTION READ WRITE";

impl Before {
    /// Checks that locks can rely on a session, and returns its state.
    ///
    /// # Errors
    /// [`Failure::Refused`] for a session on which locks would break.
    pub(crate) fn check(connection: &mut Connection) -> Result<Self, Failure> {
        let dialect = connection.dialect;
        let row = connection.query(&dialect.ask_before())?;
        let before = Self::read(&row, dialect).ok_or_else(|| Failure::Refused(senseless()))?;
        connection.check_id(number(&row, 0))?;
        if number(&row, 1) != Some(1) {
            return Err(Failure::Refused(incompatible(
                "autocommit is off in a session that the application's function gave, so a lock's statements would open a transaction; have the function give sessions with autocommit",
            )));
        }
        let server = text(&row, 4).ok_or_else(|| Failure::Refused(senseless()))?;
        let checked = connection.link.shared.check_server(&server);
        checked.map_err(Failure::Refused)?;
        connection.run(BETWEEN_TRANSACTIONS)?;
        Ok(before)
    }

    fn read(row: &Row, dialect: Dialect) -> Option<Self> {
        let idle = number(row, 2)?;
        // MariaDB has a fraction of seconds.
        let limit = match number(row, 3) {
            Some(limit) => limit.to_string(),
            None => row.get::<f64, _>(3)?.to_string(),
        };
        let name = dialect.statement_limit();
        let restore = format!("SET SESSION wait_timeout = {idle}, {name} = {limit}");
        Some(Self { restore })
    }
}
