//! PostgreSQL: `pg_try_advisory_lock` and `pg_advisory_unlock`, prepared, without lease and token.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::{BufMut as _, BytesMut};
use lockkeeper_testkit::PostgresServer;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use super::{Done, NAMES_PER_STATEMENT, Raw, expect};

/// A session, by TCP like that of a keeper.
pub(crate) struct RawPostgres {
    socket: TcpStream,
    out: BytesMut,
    received: BytesMut,
    /// The keys of many names, as an array.
    keys: String,
}

/// The prepared statements, each with a name.
const STATEMENTS: [(&str, &str); 5] = [
    ("lock", "SELECT pg_try_advisory_lock($1::int8)"),
    ("release", "SELECT pg_advisory_unlock($1::int8)"),
    (
        "lock all",
        "SELECT pg_try_advisory_lock(key) FROM unnest($1::int8[]) AS keys (key)",
    ),
    (
        "release all",
        "SELECT pg_advisory_unlock(key) FROM unnest($1::int8[]) AS keys (key)",
    ),
    ("ping", "SELECT $1::bool"),
];

impl RawPostgres {
    /// Logs in to a server that wants no password.
    pub(crate) fn open(server: &PostgresServer) -> Done<Self> {
        let socket = TcpStream::connect(server.addr())?;
        socket.set_nodelay(true)?;
        let keys = (0..NAMES_PER_STATEMENT).map(|it| (it + 4_242_424_242_424_242_424).to_string());
        let mut raw = Self {
            socket,
            out: BytesMut::new(),
            received: BytesMut::new(),
            keys: format!("{{{}}}", keys.collect::<Vec<_>>().join(",")),
        };
        let parameters = [
            ("user", PostgresServer::USER),
            ("database", PostgresServer::DATABASE),
        ];
        frontend::startup_message(parameters, &mut raw.out)?;
        raw.exchange()?;
        for (name, sql) in STATEMENTS {
            frontend::parse(name, sql, [], &mut raw.out)?;
        }
        frontend::sync(&mut raw.out);
        raw.exchange()?;
        Ok(raw)
    }

    /// Runs a prepared statement with one value. Returns how many rows say true.
    fn run(&mut self, name: &str, value: &str) -> Done<usize> {
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

    /// Runs a statement that has no values.
    pub(crate) fn query(&mut self, sql: &str) -> Done {
        frontend::query(sql, &mut self.out)?;
        self.exchange().map(drop)
    }

    fn exchange(&mut self) -> Done<usize> {
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

impl Raw for RawPostgres {
    fn pair(&mut self) -> Done {
        for statement in ["lock", "release"] {
            expect(self.run(statement, "4242424242424242424")? == 1)?;
        }
        Ok(())
    }

    fn pairs(&mut self) -> Done<usize> {
        let keys = std::mem::take(&mut self.keys);
        for statement in ["lock all", "release all"] {
            expect(self.run(statement, &keys)? == NAMES_PER_STATEMENT)?;
        }
        self.keys = keys;
        Ok(NAMES_PER_STATEMENT)
    }

    fn round_trip(&mut self) -> Done {
        self.run("ping", "true").map(drop)
    }
}
