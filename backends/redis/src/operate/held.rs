//! Who holds which name.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, HeldName, HostInstant, LockName};
use redis::cmd;

use super::{advised, run};
use crate::locks::Locks;
use crate::topology::node::Node;
use crate::wire::keys::NamedKey;
use crate::wire::lease::{holder, minted, mode};
use crate::wire::server_clock::epoch;

/// The number of keys that the server scans before it replies.
const PAGE: u32 = 1_000;

impl Locks {
    /// Returns who holds this name, or any name of a namespace, or of all; each with its namespace.
    pub(super) fn held_in(
        &self,
        namespace: Option<&str>,
        name: Option<&LockName>,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        // A sorted set, since a server may return a key twice, and two nodes a key of a slot that moves.
        let mut keys = BTreeSet::new();
        match name {
            Some(name) => keys.extend([false, true].map(|of_permits| NamedKey {
                namespace: self.keys.namespace().to_owned(),
                name: name.as_str().to_owned(),
                of_permits,
            })),
            None => {
                for node in self.topology.nodes(deadline)? {
                    self.add_keys_at(&node, namespace, &mut keys, deadline)?;
                }
            }
        }
        let keys: Vec<_> = keys.into_iter().collect();
        let mut held = Vec::new();
        // At most 200 at a time: replies are read after all requests were sent.
        for some in keys.chunks(200) {
            for (key, inspected) in some.iter().zip(self.inspect(some, deadline)) {
                let (waiting, leases) = match inspected {
                    Ok(inspected) => inspected,
                    // It is no lock. Who asks by name has to know.
                    Err(error) if name.is_none() && error.kind() == ErrorKind::Incompatible => {
                        continue;
                    }
                    Err(error) => return Err(advised(error)),
                };
                let leases = leases.iter();
                let leases = leases.map(|(lease, left)| read(&key.name, lease, *left, waiting));
                let mut leases: Vec<_> = leases.collect();
                leases.sort_by_key(|held| (held.slot, held.epoch));
                held.extend(leases.into_iter().map(|it| (key.namespace.clone(), it)));
            }
        }
        Ok(held)
    }

    /// Returns the names that have a key at a node: those of `namespace`, or of all.
    fn add_keys_at(
        &self,
        node: &Node,
        namespace: Option<&str>,
        found: &mut BTreeSet<NamedKey>,
        deadline: HostInstant,
    ) -> Result<(), Error> {
        let pattern = self.keys.pattern(namespace);
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(PAGE);
            let (next, keys): (Vec<u8>, Vec<Vec<u8>>) = run(node, &scan, deadline)?;
            let named = keys.iter().filter_map(|key| self.keys.decode(key));
            found.extend(named.filter(|key| LockName::new(key.name.as_str()).is_ok()));
            if next == b"0" {
                return Ok(());
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
