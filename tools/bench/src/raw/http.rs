//! Requests by HTTP on a connection that is kept.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use super::Done;

/// Returns the text of a request.
pub(crate) fn request(method: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: raw\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// Sends a request, and returns the body of the reply.
pub(crate) fn send(stream: &mut BufReader<TcpStream>, request: &str) -> Done<String> {
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut length, mut is_chunked) = (0, false);
    loop {
        let line = line(stream)?;
        if line.is_empty() {
            break;
        }
        if let Some(count) = line.strip_prefix("Content-Length: ") {
            length = count.parse()?;
        }
        is_chunked |= line == "Transfer-Encoding: chunked";
    }
    let mut body = Vec::new();
    if is_chunked {
        while let length @ 1.. = u64::from_str_radix(&line(stream)?, 16)? {
            stream.by_ref().take(length).read_to_end(&mut body)?;
            line(stream)?;
        }
        line(stream)?;
    } else {
        stream.by_ref().take(length).read_to_end(&mut body)?;
    }
    Ok(String::from_utf8(body)?)
}

fn line(stream: &mut BufReader<TcpStream>) -> Done<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
