//! Requests by HTTP, each on a connection of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest time to wait for a reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// Makes a request, such as `GET /v1/status/leader`, and returns the status and the body of the reply. Each of the further
/// `headers` ends with a line break.
pub(crate) fn request(
    addr: SocketAddr,
    request: &str,
    headers: &str,
    body: &str,
) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&addr, REPLY_TIME)?;
    stream.set_read_timeout(Some(REPLY_TIME))?;
    let length = body.len();
    // Of version 1.0, so that the reply comes in one part.
    let request = format!(
        "{request} HTTP/1.0\r\nHost: {addr}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    Ok((status.to_owned(), body.to_owned()))
}
