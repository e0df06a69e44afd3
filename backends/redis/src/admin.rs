//! The operators' commands: held locks and their holders, forced release, and examination.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, HostInstant, LockName};
use lockkeeper_remote::Failure;
use redis::{Cmd, FromRedisValue, Value, cmd};

use crate::bucket_keys;
use crate::connection::Connection;
use crate::examine::examine;
use crate::failure::{accepted_by_primary, is_of_other_type, parse};
use crate::keys::{decode, pattern};
use crate::owner::{holder, minted, mode};
use crate::scripts::INSPECT;
use crate::server_clock::epoch;
use crate::store::Store;

/// The number of keys that the server scans before it replies.
const PAGE: u32 = 1_000;

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let own = &self.namespace;
        let names = match name {
            Some(name) => [false, true]
                .map(|of_permits| (own.clone(), name.clone(), of_permits))
                .into(),
            None => self.names(Some(own), deadline)?,
        };
        let held = self.inspect_all(&names, name.is_some(), deadline)?;
        Ok(held.into_iter().map(|(_, held)| held).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        self.inspect_all(&self.names(None, deadline)?, false, deadline)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let key = self.key(&name, held.mode);
        let is_released = self.release(&key, &held.mark, deadline)?;
        if is_released {
            self.publish_end(&key, deadline);
        }
        Ok(is_released)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        examine(self, deadline)
    }
}

impl Store {
    /// Tells the holders of locks in the namespace that one has been taken away.
    pub(crate) fn publish_end(&self, key: &str, deadline: HostInstant) {
        let mut publish = cmd("PUBLISH");
        publish.arg(&self.listener.ended_channel).arg(key);
        // Without the message, the former holder learns of it at its next renewal.
        let _ = self.run_for_admin::<Value>(&publish, deadline);
    }

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
        self.with_connection(deadline, work).map_err(|failure| {
            let error = failure.into_error();
            if error.kind() != ErrorKind::PermissionDenied {
                return error;
            }
            Error::new(
                ErrorKind::PermissionDenied,
                "this user may not ask for that; to list and examine locks it needs +scan +zcount +info +time \
                 beside what locking needs",
            )
            .with_source(error)
        })
    }

    /// Returns the names that have a key: those of `namespace`, or of all.
    fn names(
        &self,
        namespace: Option<&str>,
        deadline: HostInstant,
    ) -> Result<Vec<FoundName>, Error> {
        let (pattern, decode): (_, fn(&[u8]) -> _) = match self.node {
            Some(_) => (bucket_keys::pattern(namespace), bucket_keys::decode),
            None => (pattern(namespace), decode),
        };
        // In order, and once: the server may name a key twice.
        let mut names = BTreeMap::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let (next, keys): (Vec<u8>, Vec<Vec<u8>>) = self.run_for_admin(&scan, deadline)?;
            for key in keys {
                if let Some((namespace, text, of_permits)) = decode(&key)
                    && let Ok(name) = LockName::new(text.as_str())
                {
                    names.insert((namespace, text, of_permits), name);
                }
            }
            if next == b"0" {
                let named = |((namespace, _, of_permits), name)| (namespace, name, of_permits);
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

    /// Returns the leases of `names`, in the same order. A key of another type is an error if the caller `asks_by_name`,
    /// else it is left out: it is no lock.
    fn inspect_all(
        &self,
        names: &[FoundName],
        asks_by_name: bool,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut held = Vec::new();
        // At most 200 at a time: replies are read after all requests were sent.
        for some in names.chunks(200) {
            held.extend(self.inspect(some, asks_by_name, deadline)?);
        }
        Ok(held)
    }

    fn inspect(
        &self,
        names: &[FoundName],
        asks_by_name: bool,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        // A node replies for the keys of a slot that it takes over only if it is asked so.
        let asking = self
            .node
            .as_ref()
            .map(|_| cmd("ASKING").get_packed_command());
        let per_name = 1 + usize::from(asking.is_some());
        let mut commands = Vec::new();
        for (namespace, name, of_permits) in names {
            let key = self.key_in(namespace, name.as_str(), *of_permits);
            commands.extend(asking.iter().flatten());
            commands.extend(INSPECT.by_code(&[&key], &[]));
        }
        let answers = self.ask_for_admin(deadline, |connection, limit| {
            let answers = connection.exchange(&commands, per_name * names.len(), limit)?;
            let answers = answers.into_iter().skip(per_name - 1).step_by(per_name);
            let replies = answers.map(|answer| match self.refusal_of_node(&answer, false) {
                // The name is at another node, if it is held at all.
                Some(_) => Ok((0, Vec::new())),
                None if !asks_by_name && is_of_other_type(&answer) => Ok((0, Vec::new())),
                None => accepted_by_primary(answer).and_then(parse),
            });
            replies.collect::<Result<Vec<Reply>, _>>()
        })?;
        let held = names.iter().zip(answers);
        let held = held.flat_map(|((namespace, name, _), (waiting, leases))| {
            let leases = leases.iter();
            let leases = leases.map(|(lease, left)| read(name, lease, *left, waiting));
            let mut leases: Vec<_> = leases.collect();
            leases.sort_by_key(|held| (held.slot, held.epoch));
            leases.into_iter().map(|held| (namespace.clone(), held))
        });
        Ok(held.collect())
    }
}

/// A namespace, a name, and whether its permits are meant.
type FoundName = (String, LockName, bool);

/// The reply of [`INSPECT`].
type Reply = (u64, Vec<(Vec<u8>, i64)>);

fn read(name: &LockName, lease: &[u8], left: i64, waiting: u64) -> HeldName {
    let lease = String::from_utf8_lossy(lease).into_owned();
    let (mode, slot) = mode(&lease);
    HeldName {
        mode,
        slot,
        holder: holder(&lease),
        epoch: minted(&lease).and_then(epoch),
        // Negative: a key that does not expire, so it is not from lockkeeper.
        remaining: u64::try_from(left).ok().map(Duration::from_millis),
        waiting: Some(waiting),
        ..HeldName::new(name.as_str(), lease)
    }
}
