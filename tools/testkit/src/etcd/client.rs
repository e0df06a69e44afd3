//! Requests by the JSON gateway, each on a connection of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// The longest time to wait for a reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// A key on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdKey {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The revision at which it was last written.
    pub modified: u64,
}

/// Posts a JSON object and returns the reply's.
pub(super) fn post(addr: SocketAddr, path: &str, body: &Value) -> io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&addr, REPLY_TIME)?;
    stream.set_read_timeout(Some(REPLY_TIME))?;
    let body = body.to_string();
    let length = body.len();
    // Of version 1.0, so that the reply comes in one part.
    let request =
        format!("POST {path} HTTP/1.0\r\nHost: {addr}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    if !head
        .lines()
        .next()
        .is_some_and(|line| line.contains(" 200 "))
    {
        return Err(io::Error::other(format!("{path}: {reply}")));
    }
    serde_json::from_str(body).map_err(io::Error::other)
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
    };
    found.into_iter().flatten().map(read).collect()
}
