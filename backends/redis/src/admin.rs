//! The operators' commands: held locks and their holders, forced release, and examination.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, HostInstant, LockName};
use lockkeeper_remote::Failure;
use redis::{Cmd, FromRedisValue, cmd};

use crate::connection::Connection;
use crate::examine::examine;
use crate::failure::{accepted_by_primary, parse};
use crate::keys::{decode_name, pattern};
use crate::owner::holder;
use crate::scripts::{INSPECT, RESERVED};
use crate::store::Store;

/// The number of keys that the server scans before it replies.
const PAGE: u32 = 1_000;

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let names = match name {
            Some(name) => vec![name.clone()],
            None => self.names(deadline)?,
        };
        let mut held = Vec::new();
        // At most 200 at a time: replies are read after all requests were sent.
        for some in names.chunks(200) {
            held.extend(self.inspect(some, deadline)?);
        }
        held.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(held)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let until = self.at_least_one_attempt(deadline);
        self.release(&self.keys(&name), &held.mark, until)
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

    /// Returns the names that have a lock's key.
    fn names(&self, deadline: HostInstant) -> Result<Vec<LockName>, Error> {
        let pattern = pattern(&self.namespace);
        // The server may name a key twice.
        let mut names = HashMap::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let (next, keys): (Vec<u8>, Vec<Vec<u8>>) = self.run_for_admin(&scan, deadline)?;
            for key in keys {
                if let Some(name) = decode_name(&self.namespace, &key)
                    && let Ok(name) = LockName::new(name)
                {
                    names.insert(name.as_str().to_owned(), name);
                }
            }
            if next == b"0" {
                return Ok(names.into_values().collect());
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

    /// Returns those of `names` that are held.
    fn inspect(&self, names: &[LockName], deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let mut commands = Vec::new();
        for name in names {
            commands.extend(INSPECT.by_code(&self.keys(name).all(), &[]));
        }
        let answers = self.ask_for_admin(deadline, |connection, limit| {
            let answers = connection
                .exchange(&commands, names.len(), limit)?
                .into_iter();
            let replies = answers.map(|answer| accepted_by_primary(answer).and_then(parse));
            replies.collect::<Result<Vec<Reply>, _>>()
        })?;
        let held = names.iter().zip(answers);
        Ok(held.filter_map(|(name, reply)| read(name, reply)).collect())
    }
}

/// The reply of [`INSPECT`].
type Reply = (Option<Vec<u8>>, i64, Option<String>, u64);

/// Returns the lock of a reply, or `None` if the name is free.
fn read(name: &LockName, (owner, left, epoch, waiting): Reply) -> Option<HeldName> {
    let owner = String::from_utf8_lossy(&owner?).into_owned();
    (!owner.starts_with(RESERVED)).then(|| HeldName {
        holder: holder(&owner),
        epoch: epoch.and_then(|epoch| epoch.parse().ok()),
        // Negative: a key that does not expire, so it is not from lockkeeper.
        remaining: u64::try_from(left).ok().map(Duration::from_millis),
        waiting: Some(waiting),
        ..HeldName::new(name.as_str(), owner)
    })
}
