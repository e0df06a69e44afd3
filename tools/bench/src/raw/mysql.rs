//! MySQL and MariaDB: `GET_LOCK` and `RELEASE_LOCK`, without lease and token.

use ::mysql::prelude::Queryable as _;
use ::mysql::{Conn, Row, Statement};

use super::{Done, NAMES_PER_STATEMENT, Raw, expect};

pub(crate) struct RawMySql {
    connection: Conn,
    /// Prepared, for one name.
    pair: [Statement; 2],
    /// As texts, for many names.
    pairs: [String; 2],
}

impl RawMySql {
    pub(crate) fn new(mut connection: Conn) -> Done<Self> {
        let lock = connection.prep("SELECT GET_LOCK(?, 0)")?;
        let release = connection.prep("SELECT RELEASE_LOCK(?)")?;
        let select = |call: &str, rest: &str| {
            let calls = (0..NAMES_PER_STATEMENT).map(|it| format!("{call}('raw:seat:{it}'{rest})"));
            format!("SELECT {}", calls.collect::<Vec<_>>().join(", "))
        };
        Ok(Self {
            connection,
            pair: [lock, release],
            pairs: [select("GET_LOCK", ", 0"), select("RELEASE_LOCK", "")],
        })
    }
}

impl Raw for RawMySql {
    fn pair(&mut self) -> Done {
        for statement in &self.pair {
            let done = self.connection.exec_first(statement, ("raw:seat:42",))?;
            expect(done == Some(Some(1_i64)))?;
        }
        Ok(())
    }

    fn pairs(&mut self) -> Done<usize> {
        for statement in &self.pairs {
            let row: Option<Row> = self.connection.query_first(statement)?;
            let row = row.ok_or("no row")?;
            expect((0..row.len()).all(|at| row.get(at) == Some(1_i64)))?;
        }
        Ok(NAMES_PER_STATEMENT)
    }

    fn round_trip(&mut self) -> Done {
        Ok(self.connection.ping()?)
    }
}
