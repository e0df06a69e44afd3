//! The operators' commands: who holds what, forced release, and examination.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, Holder, HostInstant, LockName};
use lockkeeper_remote::{Failure, LAST_ATTEMPT, senseless};
use redis::{Value, cmd};

use crate::connection::Connection;
use crate::examine::examine;
use crate::keys::{Keys, decode_name, pattern};
use crate::scripts;
use crate::store::{Patience, Store, packed, told};

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
        let keys = self.keys(&name);
        let patience = Patience {
            until: deadline.max(self.clock.now() + LAST_ATTEMPT),
            rides_out: false,
            is_cancelled: &|| false,
        };
        let (keys, owner) = ([keys.lock.as_str(), &keys.line], [held.mark.as_str()]);
        let answer = self.run(&scripts::RELEASE, &keys, &owner, &patience);
        answer.map_err(Failure::into_error)?.released()
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        examine(self, deadline)
    }
}

impl Store {
    /// Runs a request that no lock needs, so that the user may lack the permission for it.
    pub(crate) fn ask_for_admin<T>(
        &self,
        deadline: HostInstant,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let left = deadline
            .saturating_since(self.clock.now())
            .max(LAST_ATTEMPT);
        self.with_connection(left, work).map_err(|failure| {
            let error = failure.into_error();
            if error.kind() != ErrorKind::PermissionDenied {
                return error;
            }
            Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "this user may not ask for that; to look at locks it needs +scan +llen +info \
                     +time beside what locking needs ({})",
                    error.message()
                ),
            )
            .with_source(error)
        })
    }

    /// Returns the names that have a lock's key.
    fn names(&self, deadline: HostInstant) -> Result<Vec<LockName>, Error> {
        let pattern = pattern(&self.namespace);
        let mut names = HashMap::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let packed = scan.get_packed_command();
            let page = self.ask_for_admin(deadline, |connection, limit| {
                connection.ask(&packed, limit).and_then(told)
            })?;
            let Value::Array(page) = page else {
                return Err(senseless());
            };
            let [Value::BulkString(next), Value::Array(keys)] = page.as_slice() else {
                return Err(senseless());
            };
            // The server may name a key twice.
            for key in keys {
                if let Value::BulkString(key) = key
                    && let Some(name) = decode_name(&self.namespace, key)
                    && let Ok(name) = LockName::new(name)
                {
                    names.insert(name.as_str().to_owned(), name);
                }
            }
            if next == b"0" {
                return Ok(names.into_values().collect());
            }
            cursor.clone_from(next);
            if self.clock.now() > deadline {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the server has too many keys to look through in this time; ask for one name, \
                     or give it more time",
                ));
            }
        }
    }

    /// Returns those of `names` that are held.
    fn inspect(&self, names: &[LockName], deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let mut commands = Vec::new();
        for name in names {
            let Keys { lock, epoch, line } = self.keys(name);
            let keys = [lock.as_str(), &epoch, &line];
            commands.extend_from_slice(&packed("EVAL", scripts::INSPECT, &keys, &[]));
        }
        let answers = self.ask_for_admin(deadline, |connection, limit| {
            let answers = connection.exchange(&commands, names.len(), limit)?;
            answers.into_iter().map(told).collect::<Result<Vec<_>, _>>()
        })?;
        let mut held = Vec::new();
        for (name, answer) in names.iter().zip(answers) {
            held.extend(read(name, &answer)?);
        }
        Ok(held)
    }
}

/// Reads the reply of [`scripts::INSPECT`]; `None` if the name is free.
fn read(name: &LockName, answer: &Value) -> Result<Option<HeldName>, Error> {
    let Value::Array(parts) = answer else {
        return Err(senseless());
    };
    let [owner, Value::Int(left), epoch, Value::Int(waiting)] = parts.as_slice() else {
        return Err(senseless());
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let Some(owner) = text(owner).filter(|owner| !owner.starts_with(scripts::RESERVED)) else {
        return Ok(None);
    };
    Ok(Some(HeldName {
        holder: holder(&owner),
        epoch: text(epoch).and_then(|epoch| epoch.parse().ok()),
        // Negative: a key that does not expire, so it is not from lockkeeper.
        remaining: u64::try_from(*left).ok().map(Duration::from_millis),
        waiting: u64::try_from(*waiting).ok(),
        ..HeldName::new(name.as_str(), owner)
    }))
}

/// Reads the holder from what `acquire` wrote; empty if another program wrote the key.
fn holder(owner: &str) -> Holder {
    let read = || {
        let (_, rest) = owner.split_once(" host=")?;
        let (host, rest) = rest.split_once(" pid=")?;
        let (pid, rest) = rest.split_once(" thread=")?;
        // A thread's name may contain any text.
        let (thread, since) = rest.rsplit_once(" since=")?;
        Some(Holder {
            host: Some(host.to_owned()),
            pid: pid.parse().ok(),
            thread: Some(thread.to_owned()),
            since: since.parse().ok().and_then(unix_millis),
            session: None,
        })
    };
    read().unwrap_or_default()
}

fn unix_millis(millis: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_read_as_acquire_writes_it() {
        let seen = holder("00ff-7 host=web-1 pid=42 thread=a pid=1 since=2 since=1500");
        assert_eq!(seen.host.as_deref(), Some("web-1"));
        assert_eq!(seen.pid, Some(42));
        assert_eq!(seen.thread.as_deref(), Some("a pid=1 since=2"));
        assert_eq!(seen.since, Some(UNIX_EPOCH + Duration::from_millis(1500)));
        assert_eq!(holder("the key of another program"), Holder::default());
    }
}
