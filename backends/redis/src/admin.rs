//! The operators' commands: held locks and their holders, forced release, and examination.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, HostInstant, LockName};
use lockkeeper_remote::Failure;
use redis::{Cmd, FromRedisValue, Value, cmd};

use crate::connection::Connection;
use crate::examine::examine;
use crate::failure::{accepted_by_primary, parse};
use crate::keys::{Keys, decode, pattern};
use crate::owner::{holder, minted};
use crate::scripts::{INSPECT, RESERVED};
use crate::server_clock::epoch;
use crate::store::Store;

/// The number of keys that the server scans before it replies.
const PAGE: u32 = 1_000;

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let own = &self.namespace;
        let names = match name {
            Some(name) => vec![(own.clone(), name.clone())],
            None => self.names(Some(own), deadline)?,
        };
        let held = self.inspect_all(&names, deadline)?;
        Ok(held.into_iter().map(|(_, held)| held).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        self.inspect_all(&self.names(None, deadline)?, deadline)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let until = self.at_least_one_attempt(deadline);
        let keys = self.keys(&name);
        let is_released = self.release(&keys, &held.mark, until)?;
        if is_released {
            let mut publish = cmd("PUBLISH");
            publish.arg(&self.listener.ended_channel).arg(&keys.lock);
            // Without the message, the former holder learns of it at its next renewal.
            let _ = self.run_for_admin::<Value>(&publish, deadline);
        }
        Ok(is_released)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        examine(self, deadline)
    }
}

impl Store {
    /// Runs a command that no lock needs.
    pub(crate) fn run_for_admin<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: HostInstant,
    ) -> Result<T, Error> {
        self.ask_for_admin(deadline, |connection, limit| {
            connection.run(command, limit).and_then(parse)
        })
    }

    /// Runs a request that no lock needs, so that the user may lack the permission for it.
    fn ask_for_admin<T>(
        &self,
        deadline: HostInstant,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let until = self.at_least_one_attempt(deadline);
        self.with_connection(until, work).map_err(|failure| {
            let error = failure.into_error();
            if error.kind() != ErrorKind::PermissionDenied {
                return error;
            }
            Error::new(
                ErrorKind::PermissionDenied,
                "this user may not ask for that; to list and examine locks it needs +scan +llen +info +time \
                 beside what locking needs",
            )
            .with_source(error)
        })
    }

    /// Returns the names that have a lock's key, with their namespaces: those of `namespace`, or of all.
    fn names(
        &self,
        namespace: Option<&str>,
        deadline: HostInstant,
    ) -> Result<Vec<(String, LockName)>, Error> {
        let pattern = pattern(namespace);
        // In order, and once: the server may name a key twice.
        let mut names = BTreeMap::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let (next, keys): (Vec<u8>, Vec<Vec<u8>>) = self.run_for_admin(&scan, deadline)?;
            for key in keys {
                if let Some((namespace, text)) = decode(&key)
                    && let Ok(name) = LockName::new(text.as_str())
                {
                    names.insert((namespace, text), name);
                }
            }
            if next == b"0" {
                let named = |((namespace, _), name)| (namespace, name);
                return Ok(names.into_iter().map(named).collect());
            }
            cursor = next;
            if self.clock.now() > deadline {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the server has too many keys to list in this time; ask for one name, or give it more time",
                ));
            }
        }
    }

    /// Returns those of `names` that are held, in the same order.
    fn inspect_all(
        &self,
        names: &[(String, LockName)],
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut held = Vec::new();
        // At most 200 at a time: replies are read after all requests were sent.
        for some in names.chunks(200) {
            held.extend(self.inspect(some, deadline)?);
        }
        Ok(held)
    }

    fn inspect(
        &self,
        names: &[(String, LockName)],
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut commands = Vec::new();
        for (namespace, name) in names {
            let keys = Keys::new(namespace, name.as_str());
            commands.extend(INSPECT.by_code(&keys.all(), &[]));
        }
        let answers = self.ask_for_admin(deadline, |connection, limit| {
            let answers = connection
                .exchange(&commands, names.len(), limit)?
                .into_iter();
            let replies = answers.map(|answer| accepted_by_primary(answer).and_then(parse));
            replies.collect::<Result<Vec<Reply>, _>>()
        })?;
        let held = names.iter().zip(answers);
        let held = held
            .filter_map(|((namespace, name), reply)| Some((namespace.clone(), read(name, reply)?)));
        Ok(held.collect())
    }
}

/// The reply of [`INSPECT`].
type Reply = (Option<Vec<u8>>, i64, u64);

/// Returns the lock of a reply, or `None` if the name is free.
fn read(name: &LockName, (owner, left, waiting): Reply) -> Option<HeldName> {
    let owner = String::from_utf8_lossy(&owner?).into_owned();
    (!owner.starts_with(RESERVED)).then(|| HeldName {
        holder: holder(&owner),
        epoch: minted(&owner).and_then(epoch),
        // Negative: a key that does not expire, so it is not from lockkeeper.
        remaining: u64::try_from(left).ok().map(Duration::from_millis),
        waiting: Some(waiting),
        ..HeldName::new(name.as_str(), owner)
    })
}
