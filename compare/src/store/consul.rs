//! `consul:` and `consuls:`: requests, and the state beside the locks, as keys of the same cluster. The cluster
//! counts no requests by their program, so the strategies count.

use std::time::Duration;

use lockkeeper::backends::consul::{ConsulOptions, PlainClient};
use lockkeeper::{CancelToken, FencingToken};
use serde_json::{Value, json};

use super::cells::{Cell, Cells};
use super::pool::{FEW, POOL_TIMEOUT, Pool};
use super::state::State;
use crate::error::Error;
use crate::random::random;

/// Far longer than the cluster needs for a request, also with 10,000 threads in a queue.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What an agent replied.
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The index at which a further request waits for a change.
    pub(crate) index: u64,
    pub(crate) body: Value,
}

/// Sends a request with a query. `None`: it has no reply within `limit`, or was cancelled.
pub(crate) fn call_within(
    client: &mut PlainClient,
    method: &'static str,
    path: (&str, &[&str]),
    body: &str,
    (limit, cancel): (Duration, Option<&CancelToken>),
) -> Result<Option<Reply>, Error> {
    let reply = client.call(method, path, body, limit, cancel)?;
    Ok(reply.map(|reply| Reply {
        status: reply.status,
        index: reply
            .header("X-Consul-Index")
            .and_then(|index| index.parse().ok())
            .unwrap_or(0),
        body: serde_json::from_slice(&reply.body).unwrap_or_default(),
    }))
}

/// Sends a request that does not wait inside the cluster.
pub(crate) fn call(
    client: &mut PlainClient,
    method: &'static str,
    path: (&str, &[&str]),
    body: &str,
) -> Result<Reply, Error> {
    call_within(client, method, path, body, (TIMEOUT, None))?.ok_or_else(|| {
        Error::failed("Consul did not carry out a request in time; do most of its servers run?")
    })
}

/// Keys of one run.
pub(crate) struct ConsulKeys {
    connections: Pool<PlainClient>,
    prefix: String,
}

impl ConsulKeys {
    /// Connects. All keys begin with `prefix`.
    pub(crate) fn open(options: &ConsulOptions, prefix: &str) -> Result<Self, Error> {
        let options = options.clone();
        Ok(Self {
            connections: Pool::open(FEW, move || Ok(PlainClient::connect(&options)?))?,
            prefix: prefix.to_owned(),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn send(&self, method: &'static str, key: &str, query: &[&str]) -> Result<Reply, Error> {
        let mut client = self.connections.get(POOL_TIMEOUT)?;
        call(&mut client, method, (&format!("/v1/kv/{key}"), query), "")
    }

    fn write_key(&self, key: &str, value: &str) -> Value {
        json!({ "KV": { "Verb": "set", "Key": key, "Value": base64(value) } })
    }

    /// Writes the key if it was read with this index.
    fn write_read(&self, key: &str, value: &str, index: i64) -> Value {
        json!({ "KV": { "Verb": "cas", "Key": key, "Value": base64(value), "Index": index } })
    }

    fn write_user(&self, user: u32) -> Value {
        let key = self.key(&format!("users/{user}-{:016x}", random()));
        self.write_key(&key, "")
    }

    /// Carries out a transaction, and returns whether all of its conditions held.
    fn transact(&self, verbs: Vec<Value>) -> Result<bool, Error> {
        let mut client = self.connections.get(POOL_TIMEOUT)?;
        let body = Value::from(verbs).to_string();
        Ok(call(&mut client, "PUT", ("/v1/txn", &[]), &body)?.status == 200)
    }

    fn read_key(&self, name: &str) -> Result<Cell, Error> {
        // The value is a number, so the reply is one, too; its index is that of the key.
        let reply = self.send("GET", &self.key(name), &["raw"])?;
        let value = reply.body.as_i64().ok_or_else(|| {
            Error::failed("the scenario's data is gone; did another program delete its keys?")
        })?;
        Ok(Cell {
            value,
            revision: reply.index.try_into().unwrap_or(i64::MAX),
        })
    }

    /// Removes the keys.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        self.send("DELETE", &self.key(""), &["recurse"]).map(drop)
    }
}

fn base64(text: &str) -> String {
    // Those of etcd's JSON are the same.
    lockkeeper::backends::etcd::encoded(text)
}

fn cell_name(cell: u32) -> String {
    format!("cell-{cell}")
}

impl Cells for ConsulKeys {
    fn read_cells(&self, cells: &[u32]) -> Result<Vec<Cell>, Error> {
        let read = |&cell: &u32| self.read_key(&cell_name(cell));
        cells.iter().map(read).collect()
    }

    fn write_cells(&self, cells: &[(u32, Cell, i64)], user: u32) -> Result<(bool, u64), Error> {
        let write = |&(cell, read, value): &(u32, Cell, i64)| {
            let key = self.key(&cell_name(cell));
            self.write_read(&key, &value.to_string(), read.revision)
        };
        let cells = cells.iter().map(write);
        let written = self.transact(cells.chain([self.write_user(user)]).collect())?;
        Ok((written, 1))
    }
}

impl State for ConsulKeys {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        self.remove()?;
        let cells = (0..).zip(values);
        let cells = cells
            .map(|(cell, value)| self.write_key(&self.key(&cell_name(cell)), &value.to_string()));
        let token = self.write_key(&self.key("token"), "0");
        self.transact(cells.chain([token]).collect()).map(drop)
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        Ok(self.read_key(&cell_name(cell))?.value)
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        let write = self.write_key(&self.key(&cell_name(cell)), &value.to_string());
        self.transact(vec![write]).map(drop)
    }

    /// Consul compares no values, so the token is written if it has not changed since it was read.
    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        loop {
            let last = self.read_key("token")?;
            if last.value > token.as_i64() {
                return Ok(false);
            }
            let text = token.as_i64().to_string();
            let written = self.transact(vec![
                self.write_read(&self.key("token"), &text, last.revision),
                self.write_key(&self.key(&cell_name(0)), &value.to_string()),
            ])?;
            if written {
                return Ok(true);
            }
        }
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        self.transact(vec![self.write_user(user)]).map(drop)
    }

    fn recorded(&self) -> Result<i64, Error> {
        let reply = self.send("GET", &self.key("users/"), &["keys"])?;
        let count = reply.body.as_array().map_or(0, Vec::len);
        Ok(count.try_into().unwrap_or(i64::MAX))
    }
}
