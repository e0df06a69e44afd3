//! A MySQL or MariaDB server for a group of rows, and its counter of statements.

use std::cell::RefCell;
use std::error::Error;

use lockkeeper_testkit::{MySqlClient, MySqlKind, MySqlOptions, MySqlServer};
use mysql::{Conn, Opts, OptsBuilder};

use crate::server::Missing;

/// Starts a server.
pub(crate) fn start(kind: MySqlKind) -> Result<MySqlServer, Box<dyn Error>> {
    start_with(kind, &MySqlOptions::new())
}

/// Starts a server with options.
pub(crate) fn start_with(
    kind: MySqlKind,
    options: &MySqlOptions,
) -> Result<MySqlServer, Box<dyn Error>> {
    kind.program().map_err(Missing::new)?;
    Ok(MySqlServer::start(kind, options)?)
}

/// Opens a raw connection, by TCP like that of a keeper.
pub(crate) fn raw(server: &MySqlServer) -> Result<Conn, Box<dyn Error>> {
    let options = OptsBuilder::from_opts(Opts::from_url(&server.url())?);
    Ok(Conn::new(options.prefer_socket(false).tcp_nodelay(true))?)
}

/// The server's own count of statements, without those that read it.
pub(crate) struct Questions(RefCell<(MySqlClient, u64)>);

impl Questions {
    pub(crate) fn of(server: &MySqlServer) -> Result<Self, Box<dyn Error>> {
        Ok(Self(RefCell::new((server.client()?, 0))))
    }

    /// Returns how many statements the server was sent so far.
    pub(crate) fn sent(&self) -> Result<u64, Box<dyn Error>> {
        let (client, own) = &mut *self.0.borrow_mut();
        *own += 1;
        Ok(client.status("Questions")? - *own)
    }
}
