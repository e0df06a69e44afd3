//! Looks at a server, as its superuser.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::PostgresServer;
use crate::until::wait_until;

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection as `postgres`, by the server's unix socket.
pub(super) struct Superuser(UnixStream);

impl Superuser {
    /// Logs in. A server that still starts refuses that.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let database = PostgresServer::DATABASE;
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut client = Self(stream);
        // The version 3.0 of the protocol, and the parameters.
        let parameters = format!("\0\x03\0\0user\0postgres\0database\0{database}\0\0");
        client.send(None, parameters.as_bytes())?;
        client.rows()?;
        Ok(client)
    }

    /// Runs statements, and returns the rows of all, every value as text, NULL as empty.
    pub(super) fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        self.send(Some(b'Q'), format!("{sql}\0").as_bytes())?;
        self.rows()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
        let mut message = Vec::from_iter(kind);
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(body);
        self.0.write_all(&message)
    }

    /// Reads until the server is ready for a statement.
    fn rows(&mut self) -> io::Result<Vec<Vec<String>>> {
        let mut rows = Vec::new();
        let mut refusal = None;
        loop {
            let mut head = [0; 5];
            match (self.0.read_exact(&mut head), &refusal) {
                // After a refused login, the server closes the connection.
                (Err(_), Some(text)) => return Err(io::Error::other(String::clone(text))),
                (read, _) => read?,
            }
            let [kind, length @ ..] = head;
            let mut body = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4)];
            self.0.read_exact(&mut body)?;
            match kind {
                b'D' => rows.push(values(&body)),
                b'E' => refusal = Some(String::from_utf8_lossy(&body).replace('\0', " ")),
                b'Z' => return refusal.map_or(Ok(rows), |text| Err(io::Error::other(text))),
                _ => {}
            }
        }
    }
}

/// Returns the values of a row: their number, then each with its length before it, which is negative for NULL.
fn values(row: &[u8]) -> Vec<String> {
    let mut rest = row.get(2..).unwrap_or_default();
    let mut values = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let (value, tail) = tail.split_at(length.min(tail.len()));
        values.push(String::from_utf8_lossy(value).into_owned());
        rest = tail;
    }
    values
}

impl PostgresServer {
    /// Returns all rows of statements, every value as text, NULL as empty. They run as the superuser in
    /// [`PostgresServer::DATABASE`]; each call is a session.
    ///
    /// # Errors
    /// The server's own error, no answer within 30 s, or it does not run.
    pub fn rows(&self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        Superuser::connect(&self.socket())?.query(sql)
    }

    /// Returns the first value of the first row, empty if there is none or if it is NULL.
    ///
    /// # Errors
    /// As [`PostgresServer::rows`].
    pub fn value(&self, sql: &str) -> io::Result<String> {
        let first = self.rows(sql)?.into_iter().next();
        Ok(first
            .and_then(|row| row.into_iter().next())
            .unwrap_or_default())
    }

    /// Runs statements.
    ///
    /// # Errors
    /// As [`PostgresServer::rows`].
    pub fn execute(&self, sql: &str) -> io::Result<()> {
        self.rows(sql).map(drop)
    }

    /// Returns the process ids of all sessions of [`PostgresServer::USER`].
    ///
    /// # Errors
    /// As [`PostgresServer::rows`].
    pub fn sessions(&self) -> io::Result<Vec<u32>> {
        let user = Self::USER;
        let rows = self.rows(&format!(
            "SELECT pid FROM pg_stat_activity WHERE usename = '{user}'"
        ))?;
        Ok(rows
            .iter()
            .filter_map(|row| row.first()?.parse().ok())
            .collect())
    }

    /// Ends every session of [`PostgresServer::USER`], and with it the locks that it holds and waits for. Returns
    /// when all have ended.
    ///
    /// # Errors
    /// As [`PostgresServer::rows`], or a session does not end within 30 s.
    pub fn end_sessions(&self) -> io::Result<()> {
        let user = Self::USER;
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{user}'"
        );
        wait_until(|| Ok(self.value(&end)? == "0"))
    }
}
