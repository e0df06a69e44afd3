//! Tables of locks on SQL servers under test.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::daemon::Daemon;
use crate::register::RegisterEntry;
use crate::test_server::{EndFault, Facts, TestServer};
use crate::until::wait_until;
#[cfg(feature = "mysql")]
use crate::{MySqlKind, MySqlOptions, MySqlServer};
use crate::{PostgresKind, PostgresOptions, PostgresServer};

/// A server with the SQL to look at its table.
trait SqlServer: TestServer {
    /// The table.
    const TABLE: &'static str;
    /// The server's clock.
    const NOW: &'static str;

    /// Returns the text of a column of bytes.
    fn text(column: &str) -> String;

    /// Returns the first values of all rows.
    fn values(&self, sql: &str) -> io::Result<Vec<String>>;
}

impl SqlServer for PostgresServer {
    const TABLE: &'static str = "lockkeeper";
    const NOW: &'static str = "clock_timestamp()";

    fn text(column: &str) -> String {
        format!("convert_from({column}, 'UTF8')")
    }

    fn values(&self, sql: &str) -> io::Result<Vec<String>> {
        Ok(self
            .rows(sql)?
            .into_iter()
            .flat_map(|row| row.into_iter().next())
            .collect())
    }
}

#[cfg(feature = "mysql")]
impl SqlServer for MySqlServer {
    const TABLE: &'static str = "shop.lockkeeper";
    const NOW: &'static str = "UTC_TIMESTAMP(6)";

    fn text(column: &str) -> String {
        format!("CONVERT({column} USING utf8mb4)")
    }

    fn values(&self, sql: &str) -> io::Result<Vec<String>> {
        let rows = self.client()?.rows(sql)?.into_iter();
        Ok(rows.filter_map(|row| row.into_iter().next()?).collect())
    }
}

/// Starts a PostgreSQL server whose URLs say that locks are in a table.
pub(crate) fn start_postgres(kind: PostgresKind) -> io::Result<Arc<dyn TestServer>> {
    let server = PostgresServer::start(kind, &PostgresOptions::new())?;
    Ok(Arc::new(Table(Arc::new(server))))
}

/// Starts a MySQL or MariaDB server whose URLs say that locks are in a table.
#[cfg(feature = "mysql")]
pub(crate) fn start_mysql(kind: MySqlKind) -> io::Result<Arc<dyn TestServer>> {
    let server = MySqlServer::start(kind, &MySqlOptions::new().show_locks())?;
    Ok(Arc::new(Table(Arc::new(server))))
}

/// A server with locks in a table.
struct Table<S>(Arc<S>);

impl<S: SqlServer> Table<S> {
    /// Returns the values of all entries, or of that of a name.
    fn entries(&self, of: Option<(&str, &str)>) -> io::Result<Vec<String>> {
        let [namespace, name, value] = ["namespace", "name", "value"].map(S::text);
        let of = of.map(|of| format!(" AND {namespace} = '{}' AND {name} = 'lock/{}'", of.0, of.1));
        let condition = of.unwrap_or_default();
        let sql = format!(
            "SELECT {value} FROM {} WHERE ends IS NULL{condition}",
            S::TABLE
        );
        self.values(&sql)
    }

    /// Returns the first values of all rows. There are none before the table is made.
    fn values(&self, sql: &str) -> io::Result<Vec<String>> {
        match self.0.values(sql) {
            Err(error) if error.to_string().contains("exist") => Ok(Vec::new()),
            values => values,
        }
    }

    /// Returns the entry of a name, which is free if there is none.
    fn entry(&self, namespace: &str, name: &str) -> io::Result<RegisterEntry> {
        let found = self.entries(Some((namespace, name)))?;
        Ok(RegisterEntry::read(found.first().map_or("", |it| it)))
    }
}

/// Returns whether a process works in a folder.
fn is_in_use(folder: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut folders = processes.filter_map(|it| fs::read_link(it.path().join("cwd")).ok());
    folders.any(|it| it.starts_with(folder))
}

impl<S: SqlServer> TestServer for Table<S> {
    fn facts(&self) -> Facts {
        Facts {
            is_kept_by_restart: true,
            tells_of_wipe: false,
            tells_of_unlock: false,
            // `lock/a`
            lock_request: "6c6f636b2f61'",
            ..Facts::ROWS
        }
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        format!("{}locks=table&", self.0.url_at(host, tls))
    }

    fn socket_url(&self) -> Option<String> {
        Some(format!("{}locks=table&db=shop&", self.0.socket_url()?))
    }

    fn processes(&self) -> Vec<&Daemon> {
        self.0.processes()
    }

    fn wipe(&self) -> io::Result<()> {
        self.values(&format!("DELETE FROM {}", S::TABLE)).map(drop)
    }

    fn reset(&self) -> io::Result<()> {
        self.0.reset()?;
        self.wipe()
    }

    /// Kills the server, which has the table when it starts again.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        TestServer::kill(&*self);
        // PostgreSQL's other processes answer for a moment longer.
        let folders = self.processes().into_iter().map(Daemon::folder);
        let folders: Vec<_> = folders.map(Path::to_owned).collect();
        wait_until(|| Ok(!folders.iter().any(|folder| is_in_use(folder))))?;
        Ok(Box::new(move || self.restart()))
    }

    fn slow_down(self: Arc<Self>, by: Duration) -> io::Result<EndFault> {
        Arc::clone(&self.0).slow_down(by)
    }

    /// Ends the session, and with it all leases of its process.
    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        let entry = self.entry(namespace, name)?;
        let session = entry.session(name)?;
        let (row, table) = (S::text("name"), S::TABLE);
        let sql = format!("DELETE FROM {table} WHERE {row} = 'session/{session}'");
        self.0.values(&sql).map(drop)
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.entry(namespace, name)?.waiters())
    }

    /// Returns the entries of which a session lives. A keeper that does not reach the server at its end leaves the entry to
    /// the next one that asks for the name.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let (row, table, now) = (S::text("name"), S::TABLE, S::NOW);
        let mut entries = self.entries(None)?;
        let live = self.values(&format!("SELECT {row} FROM {table} WHERE ends > {now}"))?;
        let lives = |session: &str| live.contains(&format!("session/{session}"));
        entries.retain(|value| RegisterEntry::read(value).is_used(lives));
        Ok(entries)
    }

    fn connections(&self) -> io::Result<Vec<String>> {
        self.0.connections()
    }
}
