//! Writes in transactions, each of which is carried out as a whole or not at all.

use lockkeeper_register::{Call, Version, Write};
use lockkeeper_remote::{Failure, senseless};
use serde_json::Value;

use super::{ConsulStore, json_of};
use crate::connection::Request;
use crate::wire::{Txn, pairs};

impl ConsulStore {
    /// Writes what fits into one transaction, and returns the versions of these writes. If some conditions do not hold,
    /// nothing is written. So the transaction is repeated without those.
    pub(super) fn write_some(
        &self,
        writes: &[Write<'_>],
        call: Call<'_>,
    ) -> Result<Vec<Option<Version>>, Failure> {
        let mut failed = Vec::new();
        let path = self.client.path("/v1/txn", &[]);
        loop {
            let mut txn = Txn::default();
            // The verbs of each write end before this one.
            let mut ends = Vec::new();
            for (at, write) in writes.iter().enumerate() {
                if txn.is_full(write.value.map_or(0, |it| it.len() * 4 / 3)) {
                    break;
                }
                if !failed.contains(&at) {
                    self.add(&mut txn, write);
                }
                ends.push(txn.verbs());
            }
            if txn.verbs() == 0 {
                return Ok(vec![None; ends.len()]);
            }
            let reply = self
                .client
                .request(Request::put(&path, &txn.body()), call)?;
            let is_done = reply.status == 200;
            let reply = json_of(&reply).map_err(Failure::Refused)?;
            if is_done {
                let found = pairs(reply.get("Results").unwrap_or(&Value::Null));
                let numbered = writes.iter().take(ends.len()).enumerate();
                let versions = numbered.map(|(at, write)| match write.value {
                    _ if failed.contains(&at) => None,
                    Some(_) => Some(found.get(&self.keys.entry(write.key))?.version),
                    None => Some(0),
                });
                return Ok(versions.collect());
            }
            let errors = reply.get("Errors").and_then(Value::as_array);
            let verbs = errors
                .into_iter()
                .flatten()
                .filter_map(|it| it.get("OpIndex")?.as_u64());
            let before = failed.len();
            failed.extend(verbs.map(|verb| ends.partition_point(|end| *end as u64 <= verb)));
            if failed.len() == before {
                return Err(Failure::Refused(senseless()));
            }
        }
    }

    fn add(&self, txn: &mut Txn, write: &Write<'_>) {
        let key = self.keys.entry(write.key);
        if let Some(session) = write.session {
            txn.check_session(&self.keys.session(session), session);
        }
        if let Some((other, version)) = write.also {
            txn.check_index(&self.keys.entry(other), version);
        }
        match (write.value, write.seen) {
            (Some(value), seen) => txn.write(&key, seen.unwrap_or(0), value),
            (None, Some(seen)) => txn.delete(&key, seen),
            (None, None) => txn.absent(&key),
        }
    }
}
