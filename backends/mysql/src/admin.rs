//! The operators' commands: who holds what, forced release, and examination.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, Holder, HostInstant, LockName};
use lockkeeper_remote::{Failure, LAST_ATTEMPT, senseless};
use mysql::Row;

use crate::connection::{Connection, number, text};
use crate::examine;
use crate::names::EncodedName;
use crate::statements::{self, SessionId};
use crate::store::Store;

/// The pause between two checks whether a session has ended.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// The process ids that clients report: those of all clients, and those of this user on this host, which
/// every user may read. Both are empty while the performance schema is off, MariaDB's default.
const PIDS: [&str; 2] = [
    "SELECT processlist_id, attr_value FROM performance_schema.session_connect_attrs WHERE attr_name = '_pid'",
    "SELECT processlist_id, attr_value FROM performance_schema.session_account_connect_attrs WHERE attr_name = '_pid'",
];
const SESSIONS: &str = "SHOW FULL PROCESSLIST";

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let mut held = match name {
            Some(name) => self.held_one(name, deadline)?,
            None => self.held_all(deadline)?,
        };
        if !held.is_empty() {
            self.describe(&mut held, deadline)?;
        }
        held.sort_by(|a, b| a.held.name.cmp(&b.held.name));
        Ok(held.into_iter().map(|seen| seen.held).collect())
    }

    /// A hold is known by its session and name. Where that session ends the hold and takes the name
    /// again before this call, the second hold is ended: no other session can tell the two apart, and
    /// a second named lock as a mark of each grant would cost 7 % of the pair. A session that held a
    /// name for a second is not used again ([`Session::end`](crate::session::Session::end)), so
    /// only holds that were shorter than that, or that shared their session, can be confused.
    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let (session, name) = read_mark(&held.mark).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidValue,
                "this hold was not shown by a MySQL or MariaDB store; ask again who holds the name",
            )
        })?;
        // Only the session itself can free a single name of its own.
        let ended = self.ask_apart(deadline, |connection, limit| {
            connection.run(&statements::end_holder(&name, session), limit)
        });
        let is_free = || Ok(self.holder(&name, deadline)? != Some(session));
        if let Err(error) = ended {
            // A session that does not hold the name any more is not ended.
            return if is_free()? { Ok(false) } else { Err(error) };
        }
        // The server ends the session in the background.
        while !is_free()? {
            if self.clock.now() >= deadline {
                return Err(Error::new(
                    ErrorKind::Unknown,
                    "the server was told to end the session that holds it, and has not done so yet",
                ));
            }
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(true)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        let pool_size = self.options.remote.pool_size;
        self.ask_apart(deadline, |connection, limit| {
            examine::examine(connection, pool_size, limit)
        })
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        self.dialect.cannot_tell()
    }
}

/// A name that is held.
struct HeldLock {
    held: HeldName,
    encoded: EncodedName,
    session: u64,
}

impl HeldLock {
    fn new(name: &str, is_whole: bool, encoded: EncodedName, session: SessionId) -> Self {
        let SessionId { id, start } = session;
        let mut held = HeldName::new(name, format!("{id} {start} {encoded}"));
        held.is_whole = is_whole;
        Self {
            held,
            encoded,
            session: id,
        }
    }
}

/// Reads what [`HeldLock::new`] writes.
fn read_mark(mark: &str) -> Option<(SessionId, EncodedName)> {
    let (id, rest) = mark.split_once(' ')?;
    let (start, name) = rest.split_once(' ')?;
    let (id, start) = (id.parse().ok()?, start.parse().ok()?);
    Some((SessionId { id, start }, EncodedName::parse(name)?))
}

impl Store {
    /// Runs `work` on a connection of the pool that holds no name.
    fn ask_apart<T>(
        &self,
        deadline: HostInstant,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let left = deadline
            .saturating_since(self.clock.now())
            .max(LAST_ATTEMPT);
        let mut slot = self.checkout(left).map_err(Failure::into_error)?;
        self.run(&mut slot, left, work).map_err(Failure::into_error)
    }

    fn rows(&self, sql: &str, deadline: HostInstant) -> Result<Vec<Row>, Error> {
        self.ask_apart(deadline, |connection, limit| connection.rows(sql, limit))
    }

    fn holder(
        &self,
        name: &EncodedName,
        deadline: HostInstant,
    ) -> Result<Option<SessionId>, Error> {
        self.ask_apart(deadline, |connection, limit| connection.holder(name, limit))
    }

    fn held_one(&self, name: &LockName, deadline: HostInstant) -> Result<Vec<HeldLock>, Error> {
        let encoded = EncodedName::new(&self.namespace, name.as_str());
        let session = self.holder(&encoded, deadline)?;
        let seen = session.map(|session| HeldLock::new(name.as_str(), true, encoded, session));
        Ok(seen.into_iter().collect())
    }

    fn held_all(&self, deadline: HostInstant) -> Result<Vec<HeldLock>, Error> {
        let start = self.rows(statements::START, deadline)?;
        let start = start.first().and_then(|row| number(row, 0));
        let start = start.ok_or_else(senseless)?;
        let own = self.list(deadline)?.into_iter();
        let own = own.filter_map(|(shown, id)| {
            let encoded = EncodedName::parse(&shown)?;
            let (name, is_whole) = encoded.decode(&self.namespace)?;
            Some(HeldLock::new(
                &name,
                is_whole,
                encoded,
                SessionId { id, start },
            ))
        });
        Ok(own.collect())
    }

    /// Returns all named locks of the server, and the session that holds each.
    fn list(&self, deadline: HostInstant) -> Result<Vec<(String, u64)>, Error> {
        let (sql, advice) = self.dialect.list();
        let unlisted = |error: Error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::Incompatible => {
                Error::new(ErrorKind::Unsupported, advice).with_source(error)
            }
            _ => error,
        };
        if let Some(sql) = self.dialect.is_listing() {
            let on = self.rows(sql, deadline).map_err(unlisted)?;
            if on.first().and_then(|row| number(row, 0)) != Some(1) {
                return Err(Error::new(ErrorKind::Unsupported, advice));
            }
        }
        let rows = self.rows(sql, deadline).map_err(unlisted)?;
        let read = |row: &Row| Some((text(row, 0)?, number(row, 1)?));
        Ok(rows.iter().filter_map(read).collect())
    }

    /// Adds the holders and the numbers of waiters, as far as this user may see them.
    fn describe(&self, held: &mut [HeldLock], deadline: HostInstant) -> Result<(), Error> {
        let sessions = self.rows(SESSIONS, deadline)?;
        let hosts: HashMap<u64, String> = sessions
            .iter()
            .filter_map(|row| Some((number(row, 0)?, host(&text(row, 2)?))))
            .collect();
        let statements: Vec<String> = sessions.iter().filter_map(|row| text(row, 7)).collect();
        let pids = PIDS.iter().find_map(|sql| self.rows(sql, deadline).ok());
        let pids: HashMap<u64, u32> = pids
            .iter()
            .flatten()
            .filter_map(|row| Some((number(row, 0)?, text(row, 1)?.parse().ok()?)))
            .collect();
        for seen in held {
            let asks = format!("GET_LOCK('{}',", seen.encoded);
            let waiting = statements.iter().filter(|sql| sql.contains(&asks)).count();
            // Without a permission, a user sees neither sessions nor statements of other users.
            let sees = hosts.contains_key(&seen.session);
            seen.held.waiting = sees.then(|| u64::try_from(waiting).unwrap_or(u64::MAX));
            seen.held.holder = Holder {
                host: hosts.get(&seen.session).cloned(),
                pid: pids.get(&seen.session).copied(),
                session: Some(seen.session.to_string()),
                ..Holder::default()
            };
        }
        Ok(())
    }
}

/// Returns the client's host without its port.
fn host(client: &str) -> String {
    let host = match client.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => client,
    };
    host.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_a_client_has_no_port() {
        for (client, known) in [
            ("localhost", "localhost"),
            ("web-1:53412", "web-1"),
            ("10.0.0.7:1", "10.0.0.7"),
        ] {
            assert_eq!(host(client), known);
        }
    }
}
