//! The config keys of stores that can keep locks in a table.

use lockkeeper_core::{Error, ErrorKind, Key, OpenContext, Takes};
use lockkeeper_remote::keys::RESTART_GRACE;

use crate::table::name::TableName;

/// What keeps the locks.
pub const LOCKS: Key<String> = Key::new(
    "locks",
    Takes::OneOf(&["sessions", "table"]),
    "sessions",
    "what keeps the locks: sessions of the server, or rows of a table, which also works behind poolers",
);

/// The table.
pub const TABLE: Key<String> = Key::new(
    "table",
    Takes::Text("a name like locks or schema.locks"),
    TableName::DEFAULT,
    "with locks=table: the table, which is made if it is not there",
);

/// Returns the name of the table, if locks are in one.
///
/// # Errors
/// [`ErrorKind::InvalidValue`] for a key that does not fit.
pub fn table_of(context: &OpenContext<'_>) -> Result<Option<String>, Error> {
    let invalid = |text| Err(Error::new(ErrorKind::InvalidValue, text));
    let table = context.value(&TABLE)?;
    if context.value(&LOCKS)?.as_deref() != Some("table") {
        return match table {
            Some(_) => invalid("`table` is for locks in a table; add locks=table, or leave it out"),
            None => Ok(None),
        };
    }
    if context.value(&RESTART_GRACE)?.is_some() {
        return invalid(
            "`restart_grace` is for locks that end with the server, and a table outlives it; leave it out with locks=table",
        );
    }
    let table = table.unwrap_or_else(|| TableName::DEFAULT.to_owned());
    TableName::parse(&table).map(|_| Some(table))
}
