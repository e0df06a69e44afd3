//! Entries and sessions as rows of one SQL table.
//!
//! A row is an entry, or a session if it has an end. The end is by the server's clock. A session has ended when its row is
//! gone: whoever finds it expired deletes it before saying so, so a renewal that is under way cannot make it live again.
//!
//! A statement about an entry never waits for a transaction of the application that has locked the row: it skips the row.

mod keys;
mod name;
mod opening;
mod sql;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    CancelToken, Capabilities, Capability, Clock, Error, ErrorKind, Finding, Proof, StoreInfo,
    Usage,
};
use lockkeeper_remote::{
    Connection, Counts, Failure, Pool, RemoteOptions, Server, nothing_granted, senseless,
    until_cancelled,
};

use crate::key::Key;
use crate::lease::RegisterLease;
use crate::provider::RegisterProvider;
use crate::store::{Call, Entry, Read, RegisterStore, SessionId, Version, View, Write};

pub use keys::{LOCKS, TABLE, table_of};
pub use name::TableName;
pub use opening::server_findings;
pub use sql::{Dialect, hex};

use sql::{RowWrite, TableSql};

/// How many entries one call writes, and how many sessions one call keeps.
const BATCH: usize = 64;
/// How many entries are listed at once. Each has 64 KiB at most, or twice as much in hexadecimal digits, and a reply 16 MiB.
const PAGE: usize = 100;

/// A connection on which statements run, each a complete text. It needs no state of its session.
pub trait TableConnection: Connection + Send + 'static {
    /// What the server's SQL looks like.
    type Dialect: Dialect;

    /// Returns what ends a call from another thread, by closing the connection.
    fn closer(&self) -> impl Fn() + Send + Sync + 'static;

    /// Runs statements in one round trip within `limit`, and returns the replies in their order. With `together` they are
    /// one transaction. `None` if the server undid them, since they were in conflict with others.
    ///
    /// # Errors
    /// The statements may have been carried out, unless it is [`Failure::Refused`] or [`Failure::NotSent`].
    fn run(
        &mut self,
        statements: &[String],
        together: bool,
        limit: Duration,
    ) -> Result<Option<Vec<StatementReply>>, Failure>;

    /// Finds settings that are known to break locks in the table.
    ///
    /// # Errors
    /// The server could not be asked.
    fn examine(&mut self, limit: Duration) -> Result<Vec<Finding>, Failure>;
}

/// The reply to one statement.
#[derive(Clone, Debug, Default)]
pub struct StatementReply {
    /// The rows; `None` is NULL.
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
    /// How many rows the statement has changed.
    pub changed: u64,
}

/// A table on a server, as a store of entries.
pub struct TableStore<C: TableConnection> {
    backend: &'static str,
    location: String,
    options: RemoteOptions,
    server: Server,
    counts: Arc<Counts>,
    clock: Arc<dyn Clock>,
    pool: Pool<C>,
    connect: ConnectTable<C>,
    sql: TableSql<C::Dialect>,
}

/// Opens a connection within a time.
pub type ConnectTable<C> = Arc<dyn Fn(Duration) -> Result<C, Error> + Send + Sync>;

impl<C: TableConnection> fmt::Debug for TableStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TableStore").field(&self.location).finish()
    }
}

/// The table that a [`TableStore`] opens.
#[allow(missing_debug_implementations, reason = "it lives for one call")]
pub struct TableParts<'a> {
    /// The backend's name, which is the scheme of its URLs.
    pub backend: &'static str,
    /// The name of the server's protocol in errors.
    pub protocol: &'static str,
    /// The options of the pool and of the connections.
    pub options: &'a RemoteOptions,
    /// The database that the URL of the namespace names.
    pub database: Option<&'a str>,
    /// The table, as the user names it.
    pub table: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The clock that the keepers count on.
    pub clock: Arc<dyn Clock>,
}

impl<C: TableConnection> TableStore<C> {
    /// Opens a table. `connector` returns what opens connections, and `find` returns the table with its schema, and makes
    /// it if it is not there. A session is opened, kept and ended, and an entry written and removed: a missing right shows.
    ///
    /// # Errors
    /// Those of the functions, or the server refuses a statement.
    pub fn open(
        parts: TableParts<'_>,
        connector: impl FnOnce(&Server, &Arc<Counts>) -> Result<ConnectTable<C>, Error>,
        find: impl FnOnce(&mut C, &TableName, Duration) -> Result<(C::Dialect, TableName), Error>,
    ) -> Result<RegisterProvider, Error> {
        let backend = parts.backend;
        // A statement whose reply was lost may have made the table or a row of the rehearsal, and has granted nothing.
        let opened = Self::open_parts(parts, connector, find);
        opened.map_err(|error| nothing_granted(Failure::Unanswered(error)).with_backend(backend))
    }

    fn open_parts(
        parts: TableParts<'_>,
        connector: impl FnOnce(&Server, &Arc<Counts>) -> Result<ConnectTable<C>, Error>,
        find: impl FnOnce(&mut C, &TableName, Duration) -> Result<(C::Dialect, TableName), Error>,
    ) -> Result<RegisterProvider, Error> {
        let (options, namespace) = (parts.options, parts.namespace);
        let server = Server::new(parts.protocol, &options.endpoint);
        let counts = Arc::<Counts>::default();
        let connect = connector(&server, &counts)?;
        let mut first = connect(options.connect_timeout)?;
        let wanted = TableName::parse(parts.table)?;
        let (dialect, table) = find(&mut first, &wanted, options.attempt_time())?;
        let name = table.to_string();
        let keys = [
            ("locks", "table"),
            ("table", &name),
            ("namespace", namespace),
        ];
        let pool = Pool::of(options);
        if let Some(mut slot) = pool.try_checkout() {
            slot.connection = Some(first);
        }
        let store = Self {
            backend: parts.backend,
            location: options.location(parts.backend, parts.database, &keys),
            options: options.clone(),
            server,
            counts,
            clock: Arc::clone(&parts.clock),
            pool,
            connect,
            sql: TableSql::new(dialect, &table, namespace),
        };
        store.rehearse()?;
        RegisterProvider::new(store, parts.clock)
    }

    fn rehearse(&self) -> Result<(), Error> {
        let timeout = self.options.connect_timeout;
        let call = Call::until(self.clock.now() + timeout);
        let session = self.open_session(timeout, call)?;
        let read = Read {
            keep: &[(&session, timeout)],
            ..Read::default()
        };
        let ended = self.read(&read, call)?.ended;
        let key = Key::of_namespace("rehearsal");
        let write = |seen, value| Write {
            key: &key,
            seen,
            session: Some(&session),
            also: None,
            value,
        };
        // Another process may be rehearsing, too.
        let made = self.write(&[write(None, Some("1"))], call)?;
        if let [Some(version)] = made[..] {
            let changed = self.write(&[write(Some(version), Some("2"))], call)?;
            self.write(&[write(changed.first().copied().flatten(), None)], call)?;
        }
        self.end_sessions(&[&session], call)?;
        match ended.is_empty() {
            true => Ok(()),
            false => Err(senseless()),
        }
    }

    /// Runs `work` on a connection.
    fn call<T>(
        &self,
        call: Call<'_>,
        mut work: impl FnMut(&mut C, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if call.cancel.is_some_and(CancelToken::is_cancelled) {
            let error = Error::not_sent("the call was cancelled before it was sent");
            return Err(Failure::NotSent(error));
        }
        let longest = self.options.response_timeout;
        let left = call.deadline.saturating_since(self.clock.now());
        let slot = self.pool.checkout(left.min(longest), call.cancel);
        let mut slot = slot.ok_or_else(|| self.pool.exhausted("", ""))?;
        let connect = Arc::clone(&self.connect);
        let connect = move |limit| connect(limit);
        let Call { deadline, cancel } = call;
        slot.run(&*self.clock, deadline, cancel, connect, |it, limit| {
            let close = Some(it.closer());
            let result = until_cancelled(cancel, close, || work(it, limit.min(longest)));
            result.map_err(|failure| match failure {
                // The server may have carried the statements out before it closed the connection.
                Failure::Closed(error) => Failure::Unanswered(self.server.cut().with_source(error)),
                failure => failure,
            })
        })
    }

    /// Runs statements that may be repeated.
    fn ask(&self, statements: &[String], call: Call<'_>) -> Result<Vec<StatementReply>, Error> {
        let replies = self.call(call, |connection, limit| {
            self.counts.add_commands(1);
            let replies = connection.run(statements, false, limit)?;
            replies.ok_or_else(|| Failure::Refused(conflict()))
        });
        match replies {
            Ok(replies) if replies.len() == statements.len() => Ok(replies),
            Ok(_) => Err(senseless()),
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Reads rows by the last of several statements.
    fn rows(&self, statements: &[String], call: Call<'_>) -> Result<HashMap<String, Row>, Error> {
        let reply = self.ask(statements, call)?.pop().unwrap_or_default();
        let rows = reply.rows.iter();
        let rows = rows.map(|row| Row::read::<C::Dialect>(row).ok_or_else(senseless));
        rows.collect()
    }
}

/// A row of the table.
struct Row {
    entry: Entry,
    /// Whether the session has not ended; `None` for an entry.
    is_alive: Option<bool>,
}

impl Row {
    /// Reads the columns of [`TableSql::select`], and returns the row's name beside it. A version or a value that only
    /// another program can have written makes an empty entry, which is refused for its name alone.
    fn read<D: Dialect>(columns: &[Option<Vec<u8>>]) -> Option<(String, Self)> {
        let [Some(name), Some(version), Some(value), alive] = columns else {
            return None;
        };
        let name = String::from_utf8_lossy(&D::decode(name)?).into_owned();
        let version = std::str::from_utf8(version).ok()?;
        let value = String::from_utf8(D::decode(value)?).ok();
        let entry = version.parse().ok().zip(value);
        let (version, value) = entry.unwrap_or_default();
        let row = Self {
            entry: Entry { version, value },
            is_alive: alive.as_deref().map(|alive| alive == b"1"),
        };
        Some((name, row))
    }
}

/// Returns the error of statements that the server undid.
fn conflict() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server undid the statement, since it was in conflict with another one; try again",
    )
}

/// Returns the name of a session's row.
fn row_of(session: &str) -> String {
    format!("session/{session}")
}

/// Returns a number that no other process has, nor a copy of this one.
fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| {
        let text = format!("the system gives no random numbers ({error})");
        Error::new(ErrorKind::Unavailable, text)
    })
}

impl<C: TableConnection> StoreInfo for TableStore<C> {
    fn backend(&self) -> &'static str {
        self.backend
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with(Capability::CommitProof)
            .with_batch(BATCH)
            .with_attempt_limit(self.options.attempt_time())
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.counts.usage())
    }
}

impl<C: TableConnection> RegisterStore for TableStore<C> {
    fn read(&self, read: &Read<'_>, call: Call<'_>) -> Result<View, Error> {
        let sql = &self.sql;
        let mut kept: Vec<_> = read
            .keep
            .iter()
            .map(|(id, ttl)| (row_of(id), *ttl))
            .collect();
        // All processes lock rows in one order.
        kept.sort();
        let keep = kept.iter().map(|(row, ttl)| sql.keep(row, *ttl));
        let sessions = || {
            let kept = read.keep.iter().map(|(session, _)| *session);
            kept.chain(read.check.iter().copied())
        };
        let entries = read.keys.iter().map(|key| key.as_str().to_owned());
        let names: Vec<_> = entries.chain(sessions().map(row_of)).collect();
        let mut rows = self.rows(&Vec::from_iter(keep.chain([sql.select(&names)])), call)?;
        let is_alive = |rows: &HashMap<String, Row>, session: &&str| {
            rows.get(&row_of(session))
                .is_some_and(|row| row.is_alive == Some(true))
        };
        let mut ended: Vec<_> = sessions().filter(|it| !is_alive(&rows, it)).collect();
        if !ended.is_empty() {
            let mut names: Vec<_> = ended.iter().map(|session| row_of(session)).collect();
            names.sort();
            let expire = names.iter().map(|row| sql.expire(row));
            let left = self.rows(&Vec::from_iter(expire.chain([sql.select(&names)])), call)?;
            ended.retain(|session| !left.contains_key(&row_of(session)));
        }
        Ok(View {
            entries: read
                .keys
                .iter()
                .map(|key| Some(rows.remove(key.as_str())?.entry))
                .collect(),
            ended: ended.into_iter().map(str::to_owned).collect(),
        })
    }

    fn write(&self, writes: &[Write<'_>], call: Call<'_>) -> Result<Vec<Option<Version>>, Error> {
        let versions = writes.iter().map(|_| Ok(random()? >> 1));
        let versions = versions.collect::<Result<Vec<Version>, Error>>()?;
        // Only an insertion may wait for another one: all processes make them first, in one order.
        let mut order: Vec<_> = writes.iter().zip(&versions).enumerate().collect();
        order.sort_by_key(|(_, (write, _))| (write.seen.is_some(), write.key.as_str()));
        let statement = |(_, (write, version)): &(usize, (&Write<'_>, &Version))| {
            self.sql.write(&RowWrite {
                name: write.key.as_str(),
                seen: write.seen,
                session: write.session.map(row_of),
                also: write.also.map(|(key, version)| (key.as_str(), version)),
                version: **version,
                value: write.value,
            })
        };
        let statements: Vec<_> = order.iter().map(statement).collect();
        let replies = self.call(call, |connection, limit| {
            self.counts.add_commands(1);
            connection.run(&statements, statements.len() > 1, limit)
        });
        let mut written = vec![None; writes.len()];
        let replies = replies.map_err(Failure::into_error)?.unwrap_or_default();
        for ((at, (_, version)), reply) in order.iter().zip(replies) {
            if let Some(written) = written.get_mut(*at) {
                *written = (reply.changed == 1).then_some(**version);
            }
        }
        Ok(written)
    }

    fn open_session(&self, ttl: Duration, call: Call<'_>) -> Result<SessionId, Error> {
        let session = format!("{:016x}{:08x}", random()?, random()? >> 32);
        // What processes that died have left.
        let expired = self.rows(&[self.sql.expired()], call)?;
        let mut expired: Vec<_> = expired.keys().map(|row| self.sql.expire(row)).collect();
        expired.sort();
        expired.push(self.sql.open(&row_of(&session), ttl));
        self.ask(&expired, call)?;
        Ok(session)
    }

    fn end_sessions(&self, sessions: &[&str], call: Call<'_>) -> Result<(), Error> {
        let mut names: Vec<_> = sessions.iter().map(|session| row_of(session)).collect();
        names.sort();
        let statements: Vec<_> = names.iter().map(|row| self.sql.end(row)).collect();
        self.ask(&statements, call).map(drop)
    }

    fn list(&self, call: Call<'_>) -> Result<Vec<Entry>, Error> {
        let (mut entries, mut after) = (Vec::new(), Vec::new());
        loop {
            let reply = self.ask(&[self.sql.list(&after, PAGE)], call)?.pop();
            let rows = reply.unwrap_or_default().rows;
            for row in &rows {
                let (_, row) = Row::read::<C::Dialect>(row).ok_or_else(senseless)?;
                entries.push(row.entry);
            }
            let last = rows.get(PAGE - 1).and_then(|row| row.first()?.as_deref());
            match last.and_then(C::Dialect::decode) {
                Some(name) => after = name,
                None => return Ok(entries),
            }
        }
    }

    fn examine(&self, call: Call<'_>) -> Result<Vec<Finding>, Error> {
        let found = self.call(call, C::examine);
        found.map_err(nothing_granted)
    }

    fn proof(&self, lease: &RegisterLease) -> Option<Proof> {
        Some(self.sql.proof(lease.key().as_str(), &lease.mark()))
    }
}
