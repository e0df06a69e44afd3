//! The connections of each driver.

#[cfg(feature = "diesel")]
pub(crate) mod diesel;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rusqlite")]
mod rusqlite;

#[cfg(any(feature = "diesel", feature = "mysql"))]
use crate::connection::OpenTransaction;

/// The errors after which MySQL or MariaDB may have rolled a transaction back: lock wait timeout, deadlock (also of
/// Galera), conflict of Group Replication, and a row that another transaction has changed since the snapshot (MariaDB with
/// `innodb_snapshot_isolation`, the default since 11.6.2: <https://mariadb.com/docs/server/reference/error-codes/>).
#[cfg(any(feature = "diesel", feature = "mysql"))]
const ROLLED_BACK: [i64; 4] = [1020, 1205, 1213, 3101];

/// Returns the error of MySQL or MariaDB if the work has ended the transaction, as `COMMIT` and `CREATE TABLE` do.
/// A savepoint shows it, since there is one only in a transaction.
#[cfg(any(feature = "diesel", feature = "mysql"))]
fn ended_by_work<Kind, X: OpenTransaction<Kind>>(transaction: &mut X) -> Option<X::Error> {
    // This is the first statement after the work: each further statement replaces the work's last report.
    let stored = transaction.execute("GET DIAGNOSTICS CONDITION 1 @lockkeeper_error = MYSQL_ERRNO");
    let read =
        |_| transaction.query("SELECT CAST(coalesce(@lockkeeper_error, 0) AS SIGNED) AS held");
    let code = stored.and_then(read);
    // If the next work reports nothing, the variable keeps its value.
    let cleared = transaction.execute("SET @lockkeeper_error = NULL");
    if cleared
        .and(code)
        .is_ok_and(|code| ROLLED_BACK.contains(&code))
    {
        return None;
    }
    transaction.execute("SAVEPOINT lockkeeper").ok()?;
    transaction.execute("RELEASE SAVEPOINT lockkeeper").err()
}
