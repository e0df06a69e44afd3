//! The interface for operators, and the tries at opening, on every node that keeps locks.

mod cluster;
mod examine;
mod held;
mod probe;
mod sentinels;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, HostInstant, LockName};
use redis::{Cmd, FromRedisValue, cmd};

use self::cluster::{merged, slots};
use self::examine::examine;
use self::probe::share_of;
use crate::locks::Locks;
use crate::topology::Topology;
use crate::topology::node::Node;
use crate::wire::failure::parse;

impl Admin for Locks {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let held = self.held_in(Some(self.keys.namespace()), name, deadline)?;
        Ok(held.into_iter().map(|(_, held)| held).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        self.held_in(None, None, deadline)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let key = self.keys.lock(name.as_str(), held.mode.is_permit());
        let is_released = self.release(&key, &held.mark, deadline)?;
        if is_released {
            // A cluster forwards the message to the listeners at all nodes.
            let node = self.topology.owner(&key, deadline, None)?;
            let mut publish = cmd("PUBLISH");
            publish.arg(&node.listener.ended_channel).arg(&key);
            // Without the message, the former holder learns of it at its next renewal.
            let _ = run::<redis::Value>(&node, &publish, deadline);
        }
        Ok(is_released)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        let cluster = match &self.topology {
            Topology::OneServer(node) => return examine(self, node, deadline),
            Topology::Cluster(cluster) => cluster,
        };
        let primaries = cluster.map.primaries(deadline)?;
        let mut findings = vec![slots(cluster.map.uncovered(), &primaries)];
        let mut of_nodes = Vec::new();
        let untried = (1..=primaries.len()).rev();
        for ((endpoint, _), untried) in primaries.into_iter().zip(untried) {
            let until = share_of(&*self.clock, deadline, untried);
            let node = self.topology.node_at(&endpoint);
            match node.and_then(|node| examine(self, &node, until)) {
                Ok(found) => of_nodes.push((endpoint, found)),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    findings.push(Finding::unusable(
                        "node",
                        format!("{endpoint} does not reply: {error}"),
                        "no lock of its slots can be granted, renewed or released",
                        "start the node, or have a replica take over",
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        findings.extend(merged(&of_nodes));
        Ok(findings)
    }
}

/// Runs a command that no lock needs.
fn run<T: FromRedisValue>(node: &Node, command: &Cmd, deadline: HostInstant) -> Result<T, Error> {
    let ran = node.with_connection(deadline, |connection, limit| {
        connection.run(command, limit).and_then(parse)
    });
    ran.map_err(|failure| advised(failure.into_error()))
}

/// Adds to a refusal which permissions operators need beside those of lockers.
fn advised(error: Error) -> Error {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    Error::new(
        ErrorKind::PermissionDenied,
        "this user may not ask for that; to list and examine locks it needs +scan +zcount +info +time \
         beside what locking needs",
    )
    .with_source(error)
}
