//! `postgres:` and `postgresql:`: how to connect. The server's count of statements comes a second late, so
//! the strategies count.

use std::time::Duration;

use lockkeeper::backends::postgres::{PlainClient, PostgresOptions};

use super::pool::{APPLICATION, Pool};
use super::sql::{Rows, SqlConnection};
use crate::error::Error;

/// Far longer than a queue of single-row writes can take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// How to connect to a server, with the settings of the backend's URL.
#[derive(Clone)]
pub(crate) struct PostgresConfig {
    pub(crate) options: PostgresOptions,
}

impl PostgresConfig {
    pub(crate) fn connect(&self) -> Result<PlainClient, Error> {
        Ok(PlainClient::connect(&self.options)?)
    }

    /// Returns the rows of tables in the URL's database, with names that begin with `prefix`.
    pub(crate) fn rows(&self, prefix: &str) -> Result<Rows<PlainClient>, Error> {
        let config = self.clone();
        let pool = Pool::open(APPLICATION, move || config.connect())?;
        Ok(Rows::new(pool, prefix))
    }
}

impl SqlConnection for PlainClient {
    const BEGIN: &'static str = "BEGIN";
    const TABLE_OPTIONS: &'static str = "";

    fn change(&mut self, sql: &str) -> Result<bool, Error> {
        Ok(self.run(sql, TIMEOUT)?.count > 0)
    }

    fn pair(&mut self, sql: &str) -> Result<(i64, i64), Error> {
        let rows = self.run(sql, TIMEOUT)?.rows;
        let numbers = rows.first().map(|row| {
            let number = |value: &Option<String>| value.as_ref()?.parse().ok();
            row.iter().filter_map(number).collect::<Vec<i64>>()
        });
        match numbers.as_deref() {
            Some(&[first, second]) => Ok((first, second)),
            _ => Err(Error::failed(
                "the scenario's data is gone; did another program drop its tables?",
            )),
        }
    }
}
