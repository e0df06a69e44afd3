//! The name of a table, as a user gives it.

use std::fmt;

use lockkeeper_core::{Error, ErrorKind};

/// The name of a table, and its schema if one was given. Both are letters, digits and `_`, so they need no escape in SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// The schema, which MySQL calls database.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
}

impl TableName {
    /// The table's name by default.
    pub const DEFAULT: &'static str = "lockkeeper";
    /// The longest name of a table on all servers, in bytes.
    const MAX_BYTES: usize = 63;

    /// Parses `table` or `schema.table`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for another text.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        match schema.into_iter().chain([table]).all(is_plain) {
            true => Ok(Self {
                schema: schema.map(str::to_owned),
                table: table.to_owned(),
            }),
            false => Err(Error::new(
                ErrorKind::InvalidValue,
                format!(
                    "`table` takes a name like locks or schema.locks, of letters, digits and `_`, and not {text:?}"
                ),
            )),
        }
    }

    /// Returns the name in SQL, in these quotation marks.
    pub fn quoted(&self, quote: char) -> String {
        let Self { schema, table } = self;
        match schema {
            Some(schema) => format!("{quote}{schema}{quote}.{quote}{table}{quote}"),
            None => format!("{quote}{table}{quote}"),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

fn is_plain(part: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let begins_well = !part.starts_with(|first: char| first.is_ascii_digit());
    (1..=TableName::MAX_BYTES).contains(&part.len()) && begins_well && part.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_taken() {
        let name = TableName::parse("shop.Locks_2").unwrap();
        assert_eq!(name.quoted('"'), r#""shop"."Locks_2""#);
        let longest = "x".repeat(TableName::MAX_BYTES);
        assert_eq!(
            TableName::parse(&longest).unwrap().quoted('`'),
            format!("`{longest}`")
        );
        for text in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "a b",
            "a\"",
            "a`",
            "ä",
            "2a",
            &format!("{longest}x"),
        ] {
            let error = TableName::parse(text).unwrap_err();
            assert!(
                error.message().contains("schema.locks"),
                "{text:?}: {error}"
            );
        }
    }
}
