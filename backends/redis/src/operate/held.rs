//! Who holds which name.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, HeldName, HostInstant, LockName};
use redis::cmd;

use super::{ask, run};
use crate::locks::Locks;
use crate::topology::node::Node;
use crate::wire::failure::{accepted_by_primary, is_of_other_type, parse};
use crate::wire::keys::NamedKey;
use crate::wire::lease::{holder, minted, mode};
use crate::wire::scripts::INSPECT;
use crate::wire::server_clock::epoch;

/// The number of keys that the server scans before it replies.
const PAGE: u32 = 1_000;

/// The reply of [`INSPECT`].
type Reply = (u64, Vec<(Vec<u8>, i64)>);

impl Locks {
    /// Returns the holders of this name, of all names of a namespace, or of all names; each with its
    /// namespace.
    pub(super) fn held_in(
        &self,
        namespace: Option<&str>,
        name: Option<&LockName>,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut held = Vec::new();
        for node in self.topology.nodes(deadline)? {
            let keys: Vec<_> = match name {
                Some(name) => [false, true]
                    .map(|of_permits| NamedKey {
                        namespace: self.keys.namespace().to_owned(),
                        name: name.as_str().to_owned(),
                        of_permits,
                    })
                    .into(),
                None => self.keys_at(&node, namespace, deadline)?,
            };
            // At most 200 at a time: replies are read after all requests were sent.
            for some in keys.chunks(200) {
                held.extend(self.inspect(&node, some, name.is_some(), deadline)?);
            }
        }
        held.sort_by(|(of, one), (of_other, other)| (of, &one.name).cmp(&(of_other, &other.name)));
        Ok(held)
    }

    /// Returns the names that have a key at a node: those of `namespace`, or of all.
    fn keys_at(
        &self,
        node: &Node,
        namespace: Option<&str>,
        deadline: HostInstant,
    ) -> Result<Vec<NamedKey>, Error> {
        let pattern = self.keys.pattern(namespace);
        // A sorted set, since the server may return a key twice.
        let mut found = BTreeSet::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let (next, keys): (Vec<u8>, Vec<Vec<u8>>) = run(node, &scan, deadline)?;
            let named = keys.iter().filter_map(|key| self.keys.decode(key));
            found.extend(named.filter(|key| LockName::new(key.name.as_str()).is_ok()));
            if next == b"0" {
                return Ok(found.into_iter().collect());
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

    /// Returns the leases of `keys`, in the same order. A key of another type is an error if the caller `asks_by_name`,
    /// else it is left out: it is no lock.
    fn inspect(
        &self,
        node: &Node,
        keys: &[NamedKey],
        asks_by_name: bool,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        // For the keys of a slot that it is taking over, a node replies only after `ASKING`.
        let asking = node
            .map
            .is_some()
            .then(|| cmd("ASKING").get_packed_command());
        let per_key = 1 + usize::from(asking.is_some());
        let mut commands = Vec::new();
        for key in keys {
            commands.extend(asking.iter().flatten());
            commands.extend(INSPECT.by_code(&[&self.keys.of(key)], &[]));
        }
        let answers = ask(node, deadline, |connection, limit| {
            let answers = connection.exchange(&commands, per_key * keys.len(), limit)?;
            let answers = answers.into_iter().skip(per_key - 1).step_by(per_key);
            let replies = answers.map(|answer| match node.refusal(&answer, false) {
                // The name is at another node, if it is held at all.
                Some(_) => Ok((0, Vec::new())),
                None if !asks_by_name && is_of_other_type(&answer) => Ok((0, Vec::new())),
                None => accepted_by_primary(answer).and_then(parse),
            });
            replies.collect::<Result<Vec<Reply>, _>>()
        })?;
        let held = keys.iter().zip(answers);
        let held = held.flat_map(|(key, (waiting, leases))| {
            let leases = leases.iter();
            let leases = leases.map(|(lease, left)| read(&key.name, lease, *left, waiting));
            let mut leases: Vec<_> = leases.collect();
            leases.sort_by_key(|held| (held.slot, held.epoch));
            leases.into_iter().map(|held| (key.namespace.clone(), held))
        });
        Ok(held.collect())
    }
}

fn read(name: &str, lease: &[u8], left: i64, waiting: u64) -> HeldName {
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
        ..HeldName::new(name, lease)
    }
}
