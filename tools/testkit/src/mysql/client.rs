//! A client for tests to look at a server with.

use std::fmt;
use std::io;
use std::time::Duration;

use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder, Value};

use super::{MySqlKind, MySqlServer};
use crate::until::wait_until;

/// How long a server may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection as `root`, by the server's unix socket; accepted beyond `max_connections`, too.
pub struct MySqlClient {
    kind: MySqlKind,
    conn: Conn,
}

/// A connection of [`MySqlServer::USER`], as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MySqlSession {
    /// The id that `KILL` takes, and that `CONNECTION_ID()` and `IS_USED_LOCK()` return.
    pub id: u64,
    /// `Sleep` while the session is idle, `Query` while it runs a statement.
    pub command: String,
    /// `User lock` while the session waits for a named lock.
    pub state: String,
    /// The statement that the session runs, if it runs one.
    pub statement: Option<String>,
}

impl MySqlClient {
    /// Runs a statement.
    ///
    /// # Errors
    /// The server's own error, no answer within 30 s, or a broken connection.
    pub fn execute(&mut self, sql: &str) -> io::Result<()> {
        self.conn.query_drop(sql).map_err(io::Error::other)
    }

    /// Returns all rows of a query, every value as text, NULL as `None`.
    ///
    /// # Errors
    /// As [`MySqlClient::execute`].
    pub fn rows(&mut self, sql: &str) -> io::Result<Vec<Vec<Option<String>>>> {
        let rows: Vec<mysql::Row> = self.conn.query(sql).map_err(io::Error::other)?;
        let text = |value| match value {
            Value::NULL => None,
            Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            other => Some(other.as_sql(true)),
        };
        Ok(rows
            .into_iter()
            .map(|row| row.unwrap().into_iter().map(text).collect())
            .collect())
    }

    /// Returns the first value of the first row, `None` if there is none or if it is NULL.
    ///
    /// # Errors
    /// As [`MySqlClient::execute`].
    pub fn value(&mut self, sql: &str) -> io::Result<Option<String>> {
        let first = self.rows(sql)?.into_iter().next();
        Ok(first.and_then(|row| row.into_iter().next().flatten()))
    }

    /// Returns all connections of [`MySqlServer::USER`].
    ///
    /// # Errors
    /// As [`MySqlClient::execute`].
    pub fn sessions(&mut self) -> io::Result<Vec<MySqlSession>> {
        let mut sessions = Vec::new();
        for row in self.rows("SHOW FULL PROCESSLIST")? {
            // MariaDB has a further column at the end.
            let mut row = row.into_iter();
            let mut next = || row.next().flatten();
            let (id, user, _host, _database) = (next(), next(), next(), next());
            let (command, _seconds, state, statement) = (next(), next(), next(), next());
            if user.as_deref() == Some(MySqlServer::USER) {
                sessions.push(MySqlSession {
                    id: id.and_then(|id| id.parse().ok()).unwrap_or_default(),
                    command: command.unwrap_or_default(),
                    state: state.unwrap_or_default(),
                    statement,
                });
            }
        }
        Ok(sessions)
    }

    /// Returns the named locks that are held, and the session that holds each. MySQL converts the names to
    /// lower case. Only for a server that was started with [`MySqlOptions::show_locks`](crate::MySqlOptions).
    ///
    /// # Errors
    /// As [`MySqlClient::execute`], or the server does not list them.
    pub fn held(&mut self) -> io::Result<Vec<(String, u64)>> {
        let sql = match self.kind {
            MySqlKind::MariaDb10 => {
                "SELECT table_schema, thread_id FROM information_schema.metadata_lock_info \
                 WHERE lock_type = 'User lock'"
            }
            MySqlKind::MySql9 => {
                "SELECT object_name, processlist_id FROM performance_schema.metadata_locks \
                 JOIN performance_schema.threads ON owner_thread_id = thread_id \
                 WHERE object_type = 'USER LEVEL LOCK' AND lock_status = 'GRANTED'"
            }
        };
        let mut held = Vec::new();
        for row in self.rows(sql)? {
            if let [Some(name), Some(session)] = row.as_slice() {
                held.push((name.clone(), session.parse().unwrap_or_default()));
            }
        }
        Ok(held)
    }

    /// Returns a counter of the whole server. `status("Questions")` is the number of statements from all
    /// clients since the start, including this one and excluding pings.
    ///
    /// # Errors
    /// As [`MySqlClient::execute`], or there is no counter of that name.
    pub fn status(&mut self, counter: &str) -> io::Result<u64> {
        let rows = self.rows(&format!("SHOW GLOBAL STATUS LIKE '{counter}'"))?;
        rows.first()
            .and_then(|row| row.get(1)?.as_ref()?.parse().ok())
            .ok_or_else(|| io::Error::other(format!("no count of {counter}")))
    }
}

impl fmt::Debug for MySqlClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlClient").finish_non_exhaustive()
    }
}

impl MySqlServer {
    /// Opens a connection as `root`, by the unix socket.
    ///
    /// # Errors
    /// It does not run, or has no room even for `root`.
    pub fn client(&self) -> io::Result<MySqlClient> {
        let options = OptsBuilder::new()
            .socket(Some(self.socket().to_string_lossy()))
            .user(Some("root"))
            .read_timeout(Some(REPLY_TIMEOUT))
            .write_timeout(Some(REPLY_TIMEOUT));
        Conn::new(options)
            .map(|conn| MySqlClient {
                kind: self.kind(),
                conn,
            })
            .map_err(io::Error::other)
    }

    /// Runs [`MySqlClient::execute`] on a connection of its own.
    ///
    /// # Errors
    /// As there.
    pub fn execute(&self, sql: &str) -> io::Result<()> {
        self.client()?.execute(sql)
    }

    /// Runs [`MySqlClient::value`] on a connection of its own.
    ///
    /// # Errors
    /// As there.
    pub fn value(&self, sql: &str) -> io::Result<Option<String>> {
        self.client()?.value(sql)
    }

    /// Runs [`MySqlClient::held`] on a connection of its own.
    ///
    /// # Errors
    /// As there.
    pub fn held(&self) -> io::Result<Vec<(String, u64)>> {
        self.client()?.held()
    }

    /// Ends every session of [`MySqlServer::USER`], and with it the locks that it holds and waits for.
    /// Returns when all have ended.
    ///
    /// # Errors
    /// As [`MySqlClient::execute`], or a session does not end within 30 s.
    pub fn end_sessions(&self) -> io::Result<()> {
        let mut client = self.client()?;
        wait_until(|| {
            let sessions = client.sessions()?;
            for session in &sessions {
                // An error means that the session has ended by itself.
                let _ = client.execute(&format!("KILL {}", session.id));
            }
            Ok(sessions.is_empty())
        })
    }

    /// Runs [`MySqlClient::sessions`] on a connection of its own.
    ///
    /// # Errors
    /// As there.
    pub fn sessions(&self) -> io::Result<Vec<MySqlSession>> {
        self.client()?.sessions()
    }
}
