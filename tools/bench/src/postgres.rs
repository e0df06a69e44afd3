//! A PostgreSQL server for a group of rows, and a raw session: no deadline, no lease, no pool.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::{BufMut as _, BytesMut};
use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer};
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use crate::server::Missing;

/// Starts a server.
pub(crate) fn start(kind: PostgresKind) -> Result<PostgresServer, Box<dyn Error>> {
    start_with(kind, PostgresOptions::new())
}

/// Starts a server with options. Its user needs no password.
pub(crate) fn start_with(
    kind: PostgresKind,
    options: PostgresOptions,
) -> Result<PostgresServer, Box<dyn Error>> {
    kind.program().map_err(Missing::new)?;
    Ok(PostgresServer::start(kind, &options.login("trust"))?)
}

/// A session, by TCP like that of a keeper.
pub(crate) struct Raw {
    socket: TcpStream,
    out: BytesMut,
    received: BytesMut,
}

impl Raw {
    pub(crate) fn open(server: &PostgresServer) -> Result<Self, Box<dyn Error>> {
        let socket = TcpStream::connect(server.addr())?;
        socket.set_nodelay(true)?;
        let mut raw = Self {
            socket,
            out: BytesMut::new(),
            received: BytesMut::new(),
        };
        let parameters = [
            ("user", PostgresServer::USER),
            ("database", PostgresServer::DATABASE),
        ];
        frontend::startup_message(parameters, &mut raw.out)?;
        raw.exchange()?;
        Ok(raw)
    }

    /// Prepares a statement under a name.
    pub(crate) fn prepare(&mut self, name: &str, sql: &str) -> Result<(), Box<dyn Error>> {
        frontend::parse(name, sql, [], &mut self.out)?;
        frontend::sync(&mut self.out);
        self.exchange().map(drop)
    }

    /// Runs a prepared statement with one value. Returns how many rows say true.
    pub(crate) fn run(&mut self, name: &str, value: &str) -> Result<usize, Box<dyn Error>> {
        let text = |value: &str, out: &mut BytesMut| {
            out.put_slice(value.as_bytes());
            Ok(IsNull::No)
        };
        let bound = frontend::bind("", name, [], [value], text, [], &mut self.out);
        bound.map_err(|_| "the value cannot be bound")?;
        frontend::execute("", 0, &mut self.out)?;
        frontend::sync(&mut self.out);
        self.exchange()
    }

    fn exchange(&mut self) -> Result<usize, Box<dyn Error>> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        let mut trues = 0;
        loop {
            match Message::parse(&mut self.received)? {
                Some(Message::DataRow(body)) => {
                    trues += usize::from(body.buffer().last() == Some(&b't'));
                }
                Some(Message::ErrorResponse(_)) => return Err("the server refuses".into()),
                Some(Message::ReadyForQuery(_)) => return Ok(trues),
                Some(_) => {}
                None => {
                    let mut bytes = [0; 4096];
                    let read = self.socket.read(&mut bytes)?;
                    let bytes = bytes.get(..read).unwrap_or_default();
                    if bytes.is_empty() {
                        return Err("the server has closed the connection".into());
                    }
                    self.received.extend_from_slice(bytes);
                }
            }
        }
    }
}
