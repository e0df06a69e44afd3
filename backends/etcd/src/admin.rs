//! The operators' commands: held locks and their holders, forced release, and examination.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Admin, Error, Finding, HeldName, HostInstant, LockName};
use lockkeeper_remote::{Failure, nothing_granted};
use serde_json::{Value, json};

use crate::entry::Entry;
use crate::examine::examine;
use crate::failure::Refusal;
use crate::keys::{CommonKeys, KeyRange, NameKeys, decode, name_prefix};
use crate::store::{Store, base_in, delete_if};
use crate::wire::{KeyValue, TxnReply, key_values, number, page, put, read_at};

/// The most keys in one reply. A key and its value have 3 KB at most.
const PAGE: u32 = 2_000;

/// What is known of the leases and of the epochs, asked for once.
#[derive(Default)]
struct Known {
    /// How long each lease lives.
    left: BTreeMap<i64, Option<Duration>>,
    /// The key with the number that epochs add to the revision, by namespace.
    bases: BTreeMap<String, Option<KeyValue>>,
}

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let ranges = match name {
            Some(name) => [false, true]
                .map(|of_permits| NameKeys::new(&self.namespace, name, of_permits).all())
                .to_vec(),
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
        let created = created.parse().unwrap_or(0);
        let mut told = delete_if(key, created);
        told.then.push(put(&self.keys.ended, key, 0));
        let mut reply = self.client.txn(told, deadline);
        if Refusal::Full.is_in(&reply) {
            // A deletion is possible all the same, and the holder learns of it by its next renewal.
            reply = self.client.txn(delete_if(key, created), deadline);
        }
        let reply = reply.map_err(Failure::into_error)?;
        Ok(TxnReply(&reply).succeeded())
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
        let reply = self.client.call(path, body, deadline);
        reply.map_err(nothing_granted)
    }

    fn held_in(
        &self,
        ranges: &[KeyRange],
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let mut held = Vec::new();
        let mut waiting: BTreeMap<String, u64> = BTreeMap::new();
        let mut known = Known::default();
        for range in ranges {
            for found in self.read_in_pages(range, deadline)? {
                let Some((namespace, name)) = decode(&found.key) else {
                    continue;
                };
                let entry = Entry::read(&found.value);
                if entry.is_held() {
                    let shown =
                        self.shown(&namespace, name, &entry, &found, &mut known, deadline)?;
                    held.push((namespace, found.key, shown));
                } else {
                    *waiting
                        .entry(name_prefix(&found.key).to_owned())
                        .or_default() += 1;
                }
            }
        }
        let mut held: Vec<_> = held
            .into_iter()
            .map(|(namespace, key, mut held)| {
                held.waiting = Some(waiting.get(name_prefix(&key)).copied().unwrap_or(0));
                (namespace, held)
            })
            .collect();
        held.sort_by(|(namespace, a), (other, b)| {
            let order = |held: &HeldName| (held.name.clone(), held.slot, held.epoch);
            (namespace, order(a)).cmp(&(other, order(b)))
        });
        Ok(held)
    }

    /// Reads keys in several requests: the reply to one has a bound.
    fn read_in_pages(
        &self,
        range: &KeyRange,
        deadline: HostInstant,
    ) -> Result<Vec<KeyValue>, Error> {
        let (mut rest, mut all) = (range.clone(), Vec::new());
        loop {
            let reply = self.ask("/v3/kv/range", &page(&rest, PAGE), deadline)?;
            let found = key_values(&reply);
            let last = found.iter().map(|it| &it.key).max();
            let next = last.map(|last| format!("{last}\0"));
            all.extend(found);
            match next {
                Some(next) if reply.get("more") == Some(&Value::Bool(true)) => rest.first = next,
                _ => return Ok(all),
            }
        }
    }

    fn shown(
        &self,
        namespace: &str,
        name: String,
        entry: &Entry,
        found: &KeyValue,
        known: &mut Known,
        until: HostInstant,
    ) -> Result<HeldName, Error> {
        let left = match known.left.get(&found.lease) {
            Some(left) => *left,
            None => {
                let body = json!({ "ID": found.lease.to_string() });
                let reply = self.ask("/v3/lease/timetolive", &body, until)?;
                let left = u64::try_from(reply.get("TTL").map_or(-1, number));
                // etcd rounds down.
                let left = left.ok().map(|seconds| Duration::from_secs(seconds + 1));
                *known.left.entry(found.lease).or_insert(left)
            }
        };
        let base = self.base_at(namespace, found.modified, known, until)?;
        let granted = u64::try_from(found.modified).unwrap_or(0);
        let epoch = base.map(|base| base.saturating_add(granted));
        Ok(HeldName {
            mode: entry.mode(),
            slot: entry.mode().limit().and(entry.slot()),
            holder: entry.holder(),
            epoch: entry.epoch().or(epoch),
            remaining: left,
            ..HeldName::new(name, format!("{} {}", found.created, found.key))
        })
    }

    /// Returns the number that epochs added to the revision at that revision: openings raise it.
    fn base_at(
        &self,
        namespace: &str,
        revision: i64,
        known: &mut Known,
        until: HostInstant,
    ) -> Result<Option<u64>, Error> {
        let key = CommonKeys::new(namespace).base;
        let now = match known.bases.get(namespace) {
            Some(now) => now,
            None => {
                let read = self.read(&KeyRange::one(key.as_str()), until);
                let (found, _) = read.map_err(nothing_granted)?;
                let found = found.into_iter().next();
                known.bases.entry(namespace.to_owned()).or_insert(found)
            }
        };
        if let Some(now) = now.as_ref().filter(|now| now.modified < revision) {
            return Ok(base_in(std::slice::from_ref(now)));
        }
        // It may be compacted.
        let reply = self.ask("/v3/kv/range", &read_at(&key, revision), until);
        Ok(base_in(&key_values(&reply.unwrap_or_default())))
    }
}
