//! Requests by the JSON gateway.

use std::io;
use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::http;

/// A key on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdKey {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The revision at which it was last written.
    pub modified: u64,
    /// The lease that it is bound to; 0 if it is bound to none.
    pub lease: u64,
}

/// Posts a JSON object and returns the reply's.
pub(super) fn post(addr: SocketAddr, path: &str, body: &Value) -> io::Result<Value> {
    let (status, said) = http::request(addr, &format!("POST {path}"), "", &body.to_string())?;
    match status.as_str() {
        "200" => serde_json::from_str(&said).map_err(io::Error::other),
        _ => Err(io::Error::other(format!("{path}: {status} {said}"))),
    }
}

pub(super) fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Returns the request about all keys that begin with `prefix`, which ends with `/`.
pub(super) fn under(prefix: &str) -> Value {
    let end = format!("{}0", prefix.trim_end_matches('/'));
    json!({ "key": encoded(prefix), "range_end": encoded(&end) })
}

/// Reads a number, which is left out if it is zero.
pub(super) fn number(reply: &Value, at: &str) -> u64 {
    let text = reply.pointer(at).and_then(Value::as_str);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Reads the keys in a reply.
pub(super) fn keys(reply: &Value) -> Vec<EtcdKey> {
    let text = |kv: &Value, name| {
        let bytes = BASE64_STANDARD.decode(kv.get(name)?.as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let found = reply.get("kvs").and_then(Value::as_array);
    let read = |kv: &Value| EtcdKey {
        key: text(kv, "key").unwrap_or_default(),
        value: text(kv, "value").unwrap_or_default(),
        modified: number(kv, "/mod_revision"),
        lease: number(kv, "/lease"),
    };
    found.into_iter().flatten().map(read).collect()
}
