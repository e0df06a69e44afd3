//! The operators' commands on all primaries of a cluster, and what opening tries there.

use std::time::Duration;

use lockkeeper_core::{Admin, Error, ErrorKind, Finding, HeldName, HostInstant, LockName};
use lockkeeper_remote::senseless;

use crate::bucket_keys::{epoch_key, lock_key, probe_keys, slot};
use crate::cluster::Cluster;
use crate::examine_cluster::{merged, slots};
use crate::provider::probe;
use crate::store::Store;

impl Cluster {
    /// Tries every command that a lock needs on each primary, within the connect timeout. A primary that does not reply is
    /// an error only if none does.
    pub(crate) fn probe(&self) -> Result<(), Error> {
        let until = self.clock.now() + self.options.remote.connect_timeout;
        let primaries = self.map.primaries(until)?;
        let mut failed = None;
        let mut replied = false;
        for (endpoint, _) in primaries {
            let is_its_own = |key: &String| {
                let owner = self.map.owner(slot(key), until);
                owner.is_ok_and(|owner| owner == endpoint)
            };
            // A primary of so few slots that it has no bucket keeps no lock.
            let Some(key) = probe_keys(&self.namespace).find(is_its_own) else {
                continue;
            };
            let store = self.store(&endpoint)?;
            let epoch_key = epoch_key(&key);
            let probed = probe(&store, &[&key, &epoch_key], &epoch_key);
            // The program may never need it.
            store.close_idle();
            match probed {
                Ok(()) => replied = true,
                Err(error) if error.kind() == ErrorKind::Unavailable => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) if !replied => Err(error),
            None if !replied => Err(senseless()),
            _ => Ok(()),
        }
    }

    /// Asks each primary, and returns its answers.
    fn on_all<T>(
        &self,
        deadline: HostInstant,
        ask: impl Fn(&Store) -> Result<Vec<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut answers = Vec::new();
        for (endpoint, _) in self.map.primaries(deadline)? {
            answers.extend(ask(&*self.store(&endpoint)?)?);
        }
        Ok(answers)
    }
}

impl Admin for Cluster {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let mut held = self.on_all(deadline, |store| store.held(name, deadline))?;
        held.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(held)
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut held = self.on_all(deadline, |store| store.held_in_all_namespaces(deadline))?;
        held.sort_by(|(of, one), (of_other, other)| (of, &one.name).cmp(&(of_other, &other.name)));
        Ok(held)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let key = lock_key(&self.namespace, name.as_str(), held.mode.is_permit());
        let is_released = self.release(&key, &held.mark, deadline)?;
        if is_released {
            // The cluster carries the message to the listeners at all nodes.
            let owner = self.map.owner(slot(&key), deadline)?;
            self.store(&owner)?.publish_end(&key, deadline);
        }
        Ok(is_released)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        let primaries = self.map.primaries(deadline)?;
        let mut findings = vec![slots(self.map.uncovered(), &primaries)];
        let mut of_nodes = Vec::new();
        let mut count = u32::try_from(primaries.len()).unwrap_or(u32::MAX);
        for (endpoint, _) in &primaries {
            let now = self.clock.now();
            let share: Duration = deadline.saturating_since(now) / count.max(1);
            count = count.saturating_sub(1);
            let examined = self
                .store(endpoint)
                .and_then(|store| store.examine(now + share));
            match examined {
                Ok(found) => of_nodes.push((endpoint.clone(), found)),
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
