//! Consul: the key is written with a session if it is not there, and deleted if it is.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;

use serde_json::{Value, json};

use super::http::{request, send};
use super::{Done, PIPELINE, Raw, expect};

/// The value of a lock's entry, in base64.
const VALUE: &str = "M2YwYzhkYmUtNWQ5Yi00YzNjLTlhNWUtMGE0YjdjMWQyZTNmLzQwMjY1MzE4MzY=";

/// A connection that is kept.
pub(crate) struct RawConsul(BufReader<TcpStream>);

impl RawConsul {
    pub(crate) fn connect(addr: SocketAddr) -> Done<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Carries out a transaction, and returns the reply.
    fn transact(&mut self, verbs: Vec<Value>) -> Done<Value> {
        let request = request("PUT", "/v1/txn", &Value::from(verbs));
        Ok(serde_json::from_str(&send(&mut self.0, &request)?)?)
    }

    /// Locks and releases these names, in two transactions.
    fn pairs_of(&mut self, names: Range<usize>) -> Done {
        let key = |name| format!("raw/seat:{name}");
        let write =
            |name| json!({ "KV": { "Verb": "cas", "Key": key(name), "Index": 0, "Value": VALUE } });
        let locked = self.transact(names.clone().map(write).collect())?;
        let results = locked.get("Results").and_then(Value::as_array);
        let results = results.ok_or("a key was there")?.iter().zip(names);
        let delete = |(result, name): (&Value, usize)| {
            let index = result.pointer("/KV/ModifyIndex");
            json!({ "KV": { "Verb": "delete-cas", "Key": key(name), "Index": index } })
        };
        let released = self.transact(results.map(delete).collect())?;
        expect(released.get("Errors") == Some(&Value::Null))
    }
}

impl Raw for RawConsul {
    fn pair(&mut self) -> Done {
        self.pairs_of(42..43)
    }

    fn pairs(&mut self) -> Done<usize> {
        self.pairs_of(0..PIPELINE)?;
        Ok(PIPELINE)
    }

    /// Writes, as a release does.
    fn round_trip(&mut self) -> Done {
        let verb = json!({ "KV": { "Verb": "set", "Key": "raw", "Value": VALUE } });
        self.transact(vec![verb]).map(drop)
    }
}
