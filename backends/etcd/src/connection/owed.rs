//! A request that is written without a wait. The next request on the connection reads its reply first.
//!
//! `Http` sends a request and reads its reply in one call. Until the reply was read, nothing else is sent on the
//! connection. Such a reply is short, so it has a length and no chunks.

use std::io;
use std::time::{Duration, Instant};

use lockkeeper_remote::{Failure, HttpReply};
use serde_json::Value;

use super::Connection;

/// The longest reply that is read.
const LONGEST_REPLY: usize = 64 << 10;

impl Connection {
    /// Adds a header to all further requests.
    pub(super) fn add_header(&mut self, name: &str, value: &str) {
        self.http.add_header(name, value);
        self.head += &format!("{name}: {value}\r\n");
    }

    /// Writes a request without a wait, and returns whether that is possible. Otherwise the connection is of no use.
    pub(super) fn write_owed(&mut self, path: &str, body: &Value) -> bool {
        let (head, body) = (&self.head, body.to_string());
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\n{head}Content-Length: {length}\r\n\r\n{body}");
        self.open.counts().add_commands(1);
        write_at_once(self, request.as_bytes())
    }

    /// Reads the reply that is owed, within `limit`. After a failure, the connection is of no use.
    pub(super) fn read_owed(&mut self, path: &str, limit: Duration) -> Result<Value, Failure> {
        let began = Instant::now();
        let mut read = Vec::new();
        let reply = loop {
            match reply_in(&read) {
                Ok(Some(reply)) => break Ok(reply),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            let left = limit.saturating_sub(began.elapsed());
            match read_within(self, &mut read, left) {
                Ok(()) if read.len() < LONGEST_REPLY => {}
                Ok(()) => break Err(io::ErrorKind::InvalidData.into()),
                Err(error) => break Err(error),
            }
        };
        let unread = |error: io::Error| {
            let described = match error.kind() {
                io::ErrorKind::TimedOut => self.server.silent(),
                _ => self.server.cut(),
            };
            Failure::Unanswered(described.with_source(error))
        };
        self.answer(path, reply.map_err(unread))
    }
}

/// Returns the reply, if all of it was read.
fn reply_in(read: &[u8]) -> io::Result<Option<HttpReply>> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let Some(end) = read.windows(4).position(|it| it == b"\r\n\r\n") else {
        return Ok(None);
    };
    let (head, body) = read.split_at(end + 4);
    let head = str::from_utf8(head).map_err(|_| bad())?;
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|it| it.get(..3));
    let status = status.and_then(|it| it.parse().ok()).ok_or_else(bad)?;
    let header = |wanted: &str| {
        let mut headers = head.lines().filter_map(|line| line.split_once(':'));
        headers.find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then_some(value.trim()))
    };
    let length = header("content-length").and_then(|it| it.parse::<usize>().ok());
    let length = length.ok_or_else(bad)?;
    // After its last reply, a proxy closes the connection.
    let is_last = header("connection").is_some_and(|it| it.eq_ignore_ascii_case("close"));
    match body.len() {
        count if count < length => Ok(None),
        count if count > length || is_last => Err(bad()),
        _ => Ok(Some(HttpReply {
            status,
            head: head.to_owned(),
            body: body.to_vec(),
        })),
    }
}

fn write_at_once(connection: &Connection, request: &[u8]) -> bool {
    use rustix::net::{SendFlags, send};
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(connection.socket(), request, flags) == Ok(request.len())
}

/// Reads more within `limit`.
fn read_within(connection: &Connection, read: &mut Vec<u8>, limit: Duration) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, recv};
    let socket = connection.socket();
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) {
        Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let mut buffer = [0; 4096];
    match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((_, count)) => {
            read.extend_from_slice(buffer.get(..count).unwrap_or_default());
            Ok(())
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_is_read_when_all_of_it_is_there() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-length: 2\r\n\r\n{}";
        for end in 0..whole.len() {
            assert!(reply_in(&whole[..end]).unwrap().is_none(), "{end}");
        }
        let reply = reply_in(whole).unwrap().unwrap();
        assert_eq!((reply.status, &*reply.body), (200, &b"{}"[..]));
        for other in [
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
            "hello\r\n\r\n",
        ] {
            assert!(reply_in(other.as_bytes()).is_err(), "{other}");
        }
    }
}
