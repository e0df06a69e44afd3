//! A MySQL or MariaDB server for a group of rows, and what it counts.

use std::cell::RefCell;
use std::error::Error;

use lockkeeper_testkit::{MySqlClient, MySqlKind, MySqlOptions, MySqlServer};
use mysql::{Conn, Opts, OptsBuilder};

use crate::server::Missing;

/// A server of its own.
pub(crate) fn start(kind: MySqlKind) -> Result<MySqlServer, Box<dyn Error>> {
    kind.program().map_err(Missing::new)?;
    Ok(MySqlServer::start(kind, &MySqlOptions::new())?)
}

/// A connection that nothing is added to, by TCP as a keeper's.
pub(crate) fn raw(server: &MySqlServer) -> Result<Conn, Box<dyn Error>> {
    let options = OptsBuilder::from_opts(Opts::from_url(&server.url())?);
    Ok(Conn::new(options.prefer_socket(false).tcp_nodelay(true))?)
}

/// Statements, by the server's own count, but for those that ask for it.
pub(crate) struct Questions(RefCell<(MySqlClient, u64)>);

impl Questions {
    pub(crate) fn of(server: &MySqlServer) -> Result<Self, Box<dyn Error>> {
        Ok(Self(RefCell::new((server.client()?, 0))))
    }

    /// How many the server has been sent so far.
    pub(crate) fn sent(&self) -> Result<u64, Box<dyn Error>> {
        let (client, asked) = &mut *self.0.borrow_mut();
        *asked += 1;
        Ok(client.status("Questions")? - *asked)
    }
}
