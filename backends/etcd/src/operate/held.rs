//! The operators' commands: held locks and their holders, forced release, and examination.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Admin, Error, Finding, HeldName, HostInstant, LockName};
use lockkeeper_remote::{Failure, nothing_granted};
use serde_json::{Value, json};

use super::examine::examine;
use crate::connection::failure::Refusal;
use crate::locks::epochs::base_in;
use crate::store::Store;
use crate::wire::entry::Entry;
use crate::wire::keys::{CommonKeys, KeyRange, NameKeys, decode, name_prefix};
use crate::wire::txn::{Txn, put};
use crate::wire::{Found, KeyValue, number, range, with};

/// The most keys in one reply. A key and its value have 3 KB at most.
const PAGE: u32 = 2_000;

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let ranges = match name {
            Some(name) => {
                let keys = |of_permits| NameKeys::new(&self.namespace, name, of_permits).all();
                let base = KeyRange::one(self.keys.base.as_str());
                vec![keys(false), keys(true), base]
            }
            None => vec![self.keys.namespace()],
        };
        let held = self.held_in(&ranges, deadline)?.into_iter();
        Ok(held.map(|(_, held)| held).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        self.held_in(&[KeyRange::all()], deadline)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let Some((created, key)) = held.mark.split_once(' ') else {
            return Ok(false);
        };
        let delete = Txn::delete(key, created.parse().unwrap_or(0));
        let mut told = delete.clone();
        told.then.push(put(&self.keys.ended, key, 0));
        let mut reply = self.client.txn(told, deadline, None);
        if Refusal::Full.is_in(&reply) {
            // A deletion is possible all the same, and the holder learns of it by its next renewal.
            reply = self.client.txn(delete, deadline, None);
        }
        Ok(reply.map_err(Failure::into_error)?.succeeded)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        examine(self, deadline)
    }
}

impl Store {
    /// Asks for what no lock needs.
    pub(crate) fn ask(
        &self,
        path: &str,
        body: &Value,
        deadline: HostInstant,
    ) -> Result<Value, Error> {
        let reply = self.client.call(path, body, deadline, None);
        reply.map_err(nothing_granted)
    }

    /// Returns what is held by these keys, which have the bases of the epochs among them.
    fn held_in(
        &self,
        ranges: &[KeyRange],
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut all = BTreeMap::new();
        for range in ranges {
            for found in self.read_in_pages(range, deadline)? {
                all.insert(found.key.clone(), (Entry::read(&found.value), found));
            }
        }
        let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
        for (key, (entry, _)) in &all {
            let waits = u64::from(!entry.is_held());
            *waiting.entry(name_prefix(key)).or_default() += waits;
        }
        let mut held = Vec::new();
        let mut left_of = BTreeMap::new();
        for (key, (entry, found)) in all.iter().filter(|(_, (entry, _))| entry.is_held()) {
            let Some((namespace, name)) = decode(key) else {
                continue;
            };
            let left = match left_of.get(&found.lease) {
                Some(left) => *left,
                None => *left_of
                    .entry(found.lease)
                    .or_insert(self.left(found.lease, deadline)?),
            };
            let (created, modified) = (found.seen.created, found.seen.modified);
            let base = CommonKeys::new(&namespace).base;
            let base = match all.get(&base) {
                Some((_, now)) if now.seen.modified < modified => base_in(now),
                _ => self.former_base(base, modified, deadline),
            };
            let granted = u64::try_from(modified).unwrap_or(0);
            let epoch = base.map(|base| base.saturating_add(granted));
            let shown = HeldName {
                mode: entry.mode(),
                slot: entry.mode().limit().and(entry.slot()),
                holder: entry.holder(),
                epoch: entry.epoch().or(epoch),
                remaining: left,
                waiting: waiting.get(name_prefix(key)).copied(),
                ..HeldName::new(name, format!("{created} {key}"))
            };
            held.push((namespace, shown));
        }
        held.sort_by(|(namespace, a), (other, b)| {
            let order = |held: &HeldName| (held.name.clone(), held.slot, held.epoch);
            (namespace, order(a)).cmp(&(other, order(b)))
        });
        Ok(held)
    }

    /// Reads keys in several requests: the reply to one has a bound.
    fn read_in_pages(
        &self,
        keys: &KeyRange,
        deadline: HostInstant,
    ) -> Result<Vec<KeyValue>, Error> {
        let (mut rest, mut all) = (keys.clone(), Vec::new());
        loop {
            let page = with(range(&rest), json!({ "limit": PAGE }));
            let reply = self.ask("/v3/kv/range", &page, deadline)?;
            let found = Found::read(&reply).all;
            let last = found.iter().map(|it| &it.key).max();
            let next = last.map(|last| format!("{last}\0"));
            all.extend(found);
            match next {
                Some(next) if reply.get("more") == Some(&Value::Bool(true)) => rest.first = next,
                _ => return Ok(all),
            }
        }
    }

    /// Returns how long a lease lives.
    fn left(&self, lease: i64, deadline: HostInstant) -> Result<Option<Duration>, Error> {
        let body = json!({ "ID": lease.to_string() });
        let reply = self.ask("/v3/lease/timetolive", &body, deadline)?;
        let left = u64::try_from(reply.get("TTL").map_or(-1, number)).ok();
        // etcd rounds down.
        Ok(left.map(|seconds| Duration::from_secs(seconds + 1)))
    }

    /// Returns the base of the epochs at a revision: openings raise it. The history may be compacted.
    fn former_base(&self, key: String, revision: i64, deadline: HostInstant) -> Option<u64> {
        let at = json!({ "revision": revision.to_string() });
        let read_at = with(range(&KeyRange::one(key)), at);
        let reply = self.ask("/v3/kv/range", &read_at, deadline).ok()?;
        base_in(Found::read(&reply).all.first()?)
    }
}
