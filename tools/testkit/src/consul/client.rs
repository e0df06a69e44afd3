//! Requests to an agent.

use std::io;
use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::http;

/// A key on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsulKey {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// Makes a request and returns the body of the reply, which is `null` if it is empty or a key is missing.
pub(super) fn request(
    addr: SocketAddr,
    request: &str,
    token: Option<&str>,
    body: &str,
) -> io::Result<Value> {
    let token = token.map_or_else(String::new, |token| format!("X-Consul-Token: {token}\r\n"));
    let (status, said) = http::request(addr, request, &token, body)?;
    match status.as_str() {
        "200" if said.is_empty() => Ok(Value::Null),
        "200" => serde_json::from_str(&said).map_err(io::Error::other),
        "404" => Ok(Value::Null),
        _ => Err(io::Error::other(format!("{request}: {status} {said}"))),
    }
}

/// Reads the keys in a reply.
pub(super) fn keys(reply: &Value) -> Vec<ConsulKey> {
    let read = |it: &Value| {
        let value = it.get("Value").and_then(Value::as_str).unwrap_or_default();
        let value = BASE64_STANDARD.decode(value).unwrap_or_default();
        Some(ConsulKey {
            key: it.get("Key")?.as_str()?.to_owned(),
            value: String::from_utf8_lossy(&value).into_owned(),
        })
    };
    reply
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(read)
        .collect()
}
