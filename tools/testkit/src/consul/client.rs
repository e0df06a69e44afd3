//! Requests to an agent, each on a connection of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// The longest time to wait for a reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

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
    (method, path): (&str, &str),
    token: Option<&str>,
    body: &str,
) -> io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&addr, REPLY_TIME)?;
    stream.set_read_timeout(Some(REPLY_TIME))?;
    let token = token.map_or_else(String::new, |token| format!("X-Consul-Token: {token}\r\n"));
    let length = body.len();
    // Of version 1.0, so that the reply comes in one part.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {addr}\r\n{token}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    match status {
        "200" if body.is_empty() => Ok(Value::Null),
        "200" => serde_json::from_str(body).map_err(io::Error::other),
        "404" => Ok(Value::Null),
        _ => Err(io::Error::other(format!("{method} {path}: {reply}"))),
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
