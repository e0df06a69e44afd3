//! `etcd:` and `etcds:`: requests, and the state beside the locks, as keys of the same cluster. The cluster's
//! count of requests has those of the data as well, so the strategies count.

use std::time::Duration;

use lockkeeper::FencingToken;
use lockkeeper::backends::etcd::{EtcdOptions, PlainClient, decoded, encoded, number};
use serde_json::{Value, json};

use super::cells::{Cell, Cells};
use super::pool::{FEW, POOL_TIMEOUT, Pool};
use super::state::State;
use crate::error::Error;
use crate::random::random;

/// Far longer than the cluster needs for a request, also with 10,000 threads in a queue.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Removes what a run that was killed left behind.
const TTL_SECONDS: u32 = 86_400;

/// Sends a request that does not wait inside the cluster.
pub(crate) fn call(client: &mut PlainClient, path: &str, body: &Value) -> Result<Value, Error> {
    client.call(path, body, TIMEOUT)?.ok_or_else(|| {
        Error::failed("etcd did not carry out a request in time; do most of its members run?")
    })
}

/// Creates a lease, and returns its id as etcd writes numbers.
pub(crate) fn grant_lease(client: &mut PlainClient, seconds: u64) -> Result<Value, Error> {
    let mut reply = call(client, "/v3/lease/grant", &json!({ "TTL": seconds }))?;
    Ok(reply.get_mut("ID").map(Value::take).unwrap_or_default())
}

/// Returns the request for all keys that begin with `prefix`, which ends with `/`.
pub(crate) fn all_of(prefix: &str) -> Value {
    // `0` comes after `/`.
    let end = format!("{}0", prefix.trim_end_matches('/'));
    json!({ "key": encoded(prefix), "range_end": encoded(&end) })
}

/// Keys of one run.
pub(crate) struct EtcdKeys {
    connections: Pool<PlainClient>,
    prefix: String,
    /// The lease that all keys are bound to.
    lease: Value,
}

impl EtcdKeys {
    /// Connects. All keys begin with `prefix`.
    pub(crate) fn open(options: &EtcdOptions, prefix: &str) -> Result<Self, Error> {
        let lease = grant_lease(&mut PlainClient::connect(options)?, TTL_SECONDS.into())?;
        let options = options.clone();
        Ok(Self {
            connections: Pool::open(FEW, move || Ok(PlainClient::connect(&options)?))?,
            prefix: prefix.to_owned(),
            lease,
        })
    }

    fn key(&self, name: &str) -> String {
        encoded(&format!("{}/{name}", self.prefix))
    }

    fn cell(&self, cell: u32) -> String {
        self.key(&format!("cell-{cell}"))
    }

    fn send(&self, path: &str, body: &Value) -> Result<Value, Error> {
        call(&mut *self.connections.get(POOL_TIMEOUT)?, path, body)
    }

    /// Returns the operation that writes a key.
    fn put(&self, key: &str, value: &str) -> Value {
        json!({ "request_put": { "key": key, "value": encoded(value), "lease": self.lease } })
    }

    /// Returns the operation that adds a user to the list.
    fn put_user(&self, user: u32) -> Value {
        let key = self.key(&format!("users/{user}-{:016x}", random()));
        self.put(&key, "")
    }

    /// Writes if all of `compare` is true, and returns whether it was.
    fn write_if(&self, compare: &[Value], puts: &[Value]) -> Result<bool, Error> {
        let body = json!({ "compare": compare, "success": puts });
        let reply = self.send("/v3/kv/txn", &body)?;
        Ok(reply.get("succeeded").and_then(Value::as_bool) == Some(true))
    }

    /// Removes the keys, and with their lease what a later write would leave.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        self.send("/v3/lease/revoke", &json!({ "ID": self.lease }))?;
        Ok(())
    }

    fn read_cell(&self, cell: u32) -> Result<Cell, Error> {
        let reply = self.send("/v3/kv/range", &json!({ "key": self.cell(cell) }))?;
        let found = reply.pointer("/kvs/0").and_then(|found| {
            Some(Cell {
                value: decoded(found.get("value")?).parse().ok()?,
                revision: number(found.get("mod_revision")?),
            })
        });
        found.ok_or_else(|| {
            Error::failed("the scenario's data is gone; did another program delete its keys?")
        })
    }
}

impl Cells for EtcdKeys {
    fn read_cells(&self, cells: &[u32]) -> Result<Vec<Cell>, Error> {
        cells.iter().map(|&cell| self.read_cell(cell)).collect()
    }

    fn write_cells(&self, cells: &[(u32, Cell, i64)], user: u32) -> Result<(bool, u64), Error> {
        let (mut unchanged, mut puts) = (Vec::new(), Vec::new());
        for (cell, read, value) in cells {
            let (key, revision) = (self.cell(*cell), read.revision.to_string());
            puts.push(self.put(&key, &value.to_string()));
            unchanged.push(json!({
                "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision,
            }));
        }
        puts.push(self.put_user(user));
        Ok((self.write_if(&unchanged, &puts)?, 1))
    }
}

/// Writes a token so that texts compare as numbers do.
fn comparable(token: i64) -> String {
    format!("{token:020}")
}

impl State for EtcdKeys {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        let all = all_of(&format!("{}/", self.prefix));
        self.send("/v3/kv/deleterange", &all)?;
        let cells = (0..).zip(values);
        let cells = cells.map(|(cell, value)| self.put(&self.cell(cell), &value.to_string()));
        let token = self.put(&self.key("token"), &comparable(0));
        let puts: Vec<_> = cells.chain([token]).collect();
        self.write_if(&[], &puts).map(drop)
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        Ok(self.read_cell(cell)?.value)
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        let put = self.put(&self.cell(cell), &value.to_string());
        self.write_if(&[], &[put]).map(drop)
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        let (key, new) = (self.key("token"), token.as_i64());
        let next = encoded(&comparable(new + 1));
        let not_larger = json!({ "key": key, "target": "VALUE", "result": "LESS", "value": next });
        let puts = [
            self.put(&self.cell(0), &value.to_string()),
            self.put(&key, &comparable(new)),
        ];
        self.write_if(&[not_larger], &puts)
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        self.write_if(&[], &[self.put_user(user)]).map(drop)
    }

    fn recorded(&self) -> Result<i64, Error> {
        let mut users = all_of(&format!("{}/users/", self.prefix));
        if let Some(fields) = users.as_object_mut() {
            fields.insert("count_only".to_owned(), true.into());
        }
        let reply = self.send("/v3/kv/range", &users)?;
        Ok(reply.get("count").map_or(0, number))
    }
}
