//! The operators' commands: who holds what, forced release, and examination.

use std::collections::HashMap;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, Holder, HostInstant, LockName};
use lockkeeper_sessions::SessionConnection as _;
use mysql::Row;

use crate::connection::Connection;
use crate::names::EncodedName;
use crate::provider::Store;
use crate::statements::run::{Run, SessionId};
use crate::statements::{number, text};

mod examine;

/// What clients report of their processes: all clients, and those of this user on this host, which every user may read.
/// Both are empty while the performance schema is off, MariaDB's default.
const PROCESSES: [&str; 2] = [
    "SELECT processlist_id, attr_value, attr_name FROM performance_schema.session_connect_attrs \
     WHERE attr_name IN ('_pid', 'label')",
    "SELECT processlist_id, attr_value, attr_name FROM performance_schema.session_account_connect_attrs \
     WHERE attr_name IN ('_pid', 'label')",
];
const SESSIONS: &str = "SHOW FULL PROCESSLIST";

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let mut held: Vec<_> = match name {
            Some(name) => {
                let encoded = EncodedName::new(&self.locks.namespace, name.as_str());
                let holders = |connection: &mut Connection| connection.holders(&encoded);
                let holders = self.locks.run_apart(deadline, holders)?;
                let held = |session| held_name(name.as_str(), &encoded, session);
                holders.into_iter().map(held).collect()
            }
            None => {
                let listed = self.listed(deadline)?.into_iter();
                let named = |(encoded, session): (EncodedName, _)| {
                    let (name, is_whole) = encoded.decode(&self.locks.namespace)?;
                    let held = held_name(&name, &encoded, session);
                    Some(HeldName { is_whole, ..held })
                };
                listed.filter_map(named).collect()
            }
        };
        self.describe(held.iter_mut(), deadline)?;
        held.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(held)
    }

    /// Lists every named lock that looks like one of lockkeeper, whichever program holds it.
    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let listed = self.listed(deadline)?.into_iter();
        let named = |(encoded, session): (EncodedName, _)| {
            let (namespace, name, is_whole) = encoded.decode_in_any()?;
            let held = held_name(&name, &encoded, session);
            Some((namespace, HeldName { is_whole, ..held }))
        };
        let mut held: Vec<_> = listed.filter_map(named).collect();
        self.describe(held.iter_mut().map(|(_, held)| held), deadline)?;
        held.sort_by(|(a, first), (b, second)| (a, &first.name).cmp(&(b, &second.name)));
        Ok(held)
    }

    /// A hold is known by its session and name: see the limits of
    /// [`MySqlProvider`](crate::MySqlProvider). A second named lock as a mark of each grant would cost 7 %
    /// of the pair.
    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let (session, name) = read_mark(&held.mark).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidValue,
                "this hold was not shown by a MySQL or MariaDB store; ask again who holds the name",
            )
        })?;
        self.locks.force_release(&name, session, deadline)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        self.locks.run_apart(deadline, |connection| {
            examine::examine(connection, &self.locks.options)
        })
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &[
            "since when it is held",
            "the token",
            "how long it is kept without a renewal",
            "the holder's process and label, unless performance_schema is on",
        ]
    }
}

/// A hold, marked by what [`read_mark`] reads.
fn held_name(name: &str, encoded: &EncodedName, session: SessionId) -> HeldName {
    let SessionId { id, run } = session;
    // The end of what is known of the run moves with each connection, and a hold has one mark.
    HeldName::new(name, format!("{id} {} {encoded}", run.first))
}

fn read_mark(mark: &str) -> Option<(SessionId, EncodedName)> {
    let mut parts = mark.splitn(3, ' ');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (id, first) = (number()?, number()?);
    let name = EncodedName::parse(parts.next()?)?;
    // One step of the counter may have come since it was shown.
    let last = first.saturating_add(1);
    let run = Run {
        first,
        last,
        until: last,
    };
    Some((SessionId { id, run }, name))
}

impl Store {
    fn rows(&self, sql: &str, deadline: HostInstant) -> Result<Vec<Row>, Error> {
        self.locks
            .run_apart(deadline, |connection| connection.rows(sql))
    }

    /// Returns the named locks of the server that are leases, with the session of each.
    fn listed(&self, deadline: HostInstant) -> Result<Vec<(EncodedName, SessionId)>, Error> {
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
        let listed = self.locks.run_apart(deadline, |connection| {
            Ok((connection.rows(sql)?, connection.id_of(0).run))
        });
        let (rows, run) = listed.map_err(unlisted)?;
        let named = rows.iter().filter_map(|row| {
            let (encoded, id) = (EncodedName::parse(&text(row, 0)?)?, number(row, 1)?);
            Some((encoded, SessionId { id, run }))
        });
        Ok(named.collect())
    }

    /// Adds the holders and the numbers of waiters, as far as this user may see them.
    fn describe<'a>(
        &self,
        held: impl ExactSizeIterator<Item = &'a mut HeldName>,
        deadline: HostInstant,
    ) -> Result<(), Error> {
        if held.len() == 0 {
            return Ok(());
        }
        let sessions = self.rows(SESSIONS, deadline)?;
        let host = |row: &Row| Some((number(row, 0)?, host(&text(row, 2)?)));
        let hosts: HashMap<_, _> = sessions.iter().filter_map(host).collect();
        let statements: Vec<_> = sessions.iter().filter_map(|row| text(row, 7)).collect();
        let attributes = PROCESSES
            .iter()
            .find_map(|sql| self.rows(sql, deadline).ok());
        let attribute = |row: &Row| Some(((number(row, 0)?, text(row, 2)?), text(row, 1)?));
        let attributes = attributes.iter().flatten().filter_map(attribute);
        let attributes: HashMap<_, _> = attributes.collect();
        let attribute = |id, name: &str| attributes.get(&(id, name.to_owned()));
        for held in held {
            let Some((SessionId { id, .. }, encoded)) = read_mark(&held.mark) else {
                continue;
            };
            // Without a permission, a user sees neither sessions nor statements of other users.
            if hosts.contains_key(&id) {
                let request = format!("GET_LOCK('{encoded}',");
                let waits = |sql: &&String| sql.contains(&request);
                held.waiting = u64::try_from(statements.iter().filter(waits).count()).ok();
            }
            held.holder = Holder {
                host: hosts.get(&id).cloned(),
                pid: attribute(id, "_pid").and_then(|pid| pid.parse().ok()),
                label: attribute(id, "label").cloned(),
                session: Some(id.to_string()),
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
