//! etcd: the key is written with a lease if it is not there, and deleted if it is.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::http::{self, send};
use super::{Done, PIPELINE, Raw, expect};

/// A connection that is kept, on which prepared requests are sent.
pub(crate) struct RawEtcd {
    stream: BufReader<TcpStream>,
    pair: [String; 2],
    pairs: [String; 2],
    put: String,
}

/// The keys `raw/seat:42`, and so on, in base64.
fn key(number: usize) -> String {
    BASE64_STANDARD.encode(format!("raw/seat:{number}"))
}

/// Returns the text of a request.
fn request(path: &str, body: &Value) -> String {
    http::request("POST", path, body)
}

/// Returns the transactions that lock and release these keys.
fn transactions(keys: &[String]) -> [String; 2] {
    let transaction = |result, operation: &dyn Fn(&String) -> Value| {
        let compare = |key| json!({ "key": key, "target": "CREATE", "result": result });
        let compare: Vec<_> = keys.iter().map(compare).collect();
        let success: Vec<_> = keys.iter().map(operation).collect();
        let body = json!({ "compare": compare, "success": success });
        request("/v3/kv/txn", &body)
    };
    // The host of a holder.
    let value = BASE64_STANDARD.encode("3f0c8dbe-5d9b-4c3c-9a5e-0a4b7c1d2e3f/4026531836");
    let put = |key: &String| json!({ "request_put": { "key": key, "value": value, "lease": 42 } });
    let delete = |key: &String| json!({ "request_delete_range": { "key": key } });
    [transaction("EQUAL", &put), transaction("GREATER", &delete)]
}

impl RawEtcd {
    pub(crate) fn connect(addr: SocketAddr) -> Done<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let lease = request("/v3/lease/grant", &json!({ "TTL": 3_600, "ID": 42 }));
        send(&mut stream, &lease)?;
        let keys: Vec<_> = (0..PIPELINE).map(key).collect();
        Ok(Self {
            stream,
            pair: transactions(&[key(42)]),
            pairs: transactions(&keys),
            put: request("/v3/kv/put", &json!({ "key": "cmF3", "value": "cmF3" })),
        })
    }
}

/// Sends two transactions, one after the other.
fn send_both(stream: &mut BufReader<TcpStream>, both: &[String; 2]) -> Done {
    for request in both {
        expect(send(stream, request)?.contains(r#""succeeded":true"#))?;
    }
    Ok(())
}

impl Raw for RawEtcd {
    fn pair(&mut self) -> Done {
        send_both(&mut self.stream, &self.pair)
    }

    fn pairs(&mut self) -> Done<usize> {
        send_both(&mut self.stream, &self.pairs)?;
        Ok(PIPELINE)
    }

    /// Writes, as a release does.
    fn round_trip(&mut self) -> Done {
        send(&mut self.stream, &self.put).map(drop)
    }
}
