//! Requests by HTTP/1.1 on one connection, for stores that speak HTTP.
//!
//! Stores need only a small part of HTTP. A crate for HTTP would bring some 20 crates more, and a pool that
//! ignores the caller's deadline. Its errors would not tell whether a request was sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::Error;

use crate::exchange::{MAX_REPLY, is_too_long};
use crate::failure::{Failure, Server, is_timeout, is_untrusted};
use crate::socket::{Stream, is_quiet};

/// The longest line of a head, in bytes.
const MAX_LINE: u64 = 64 << 10;

/// The reply to a request.
#[derive(Debug)]
pub struct HttpReply {
    /// The status code, such as 200.
    pub status: u16,
    /// The headers, a line each.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpReply {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(':'));
        let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }
}

/// What the head of a reply says.
struct Head {
    status: u16,
    length: Length,
    lines: String,
}

/// A connection to a server that speaks HTTP/1.1. Do not use it again after a failure: a reply may still
/// arrive on it.
pub struct Http {
    reader: BufReader<Stream>,
    /// The lines that the heads of all requests have.
    common: String,
    server: Server,
    /// With TLS: whether a server of the store has replied to any connection.
    tls: Option<Arc<AtomicBool>>,
    has_replied: bool,
    /// Whether the server announced that it closes the connection after its reply.
    is_last: bool,
}

/// How long a body is.
#[derive(Clone, Copy)]
enum Length {
    Bytes(usize),
    Chunked,
}

impl Http {
    /// Makes an HTTP connection from a stream. `host` is the server's host and port.
    ///
    /// With TLS, all connections of a store share the flag `tls`, which is set by the first reply. Until then, a
    /// connection that ends in the handshake leads to a server without TLS. Later, the server stops or starts.
    pub fn new(stream: Stream, server: Server, host: &str, tls: Option<Arc<AtomicBool>>) -> Self {
        Self {
            reader: BufReader::new(stream),
            common: format!("Host: {host}\r\nContent-Type: application/json\r\n"),
            server,
            tls,
            has_replied: false,
            is_last: false,
        }
    }

    /// Adds a header to all further requests. The value must have no line break.
    pub fn add_header(&mut self, name: &str, value: &str) {
        self.common.push_str(&format!("{name}: {value}\r\n"));
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Arc<TcpStream> {
        self.reader.get_ref().socket()
    }

    /// Returns a function that closes the connection from another thread, also during a wait for a reply.
    pub fn closer(&self) -> impl Fn() + Send + Sync + 'static {
        let socket = Arc::clone(self.socket());
        move || drop(socket.shutdown(Shutdown::Both))
    }

    /// Returns whether the connection is open, stays so, and nothing waits to be read.
    pub fn is_quiet(&self) -> bool {
        !self.is_last && self.reader.buffer().is_empty() && is_quiet(self.socket())
    }

    /// Posts a body and reads the whole reply within `limit`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn post(&mut self, path: &str, body: &[u8], limit: Duration) -> Result<HttpReply, Failure> {
        self.request("POST", path, body, limit)
    }

    /// Makes a request with a body, which may be empty, and reads the whole reply within `limit`.
    ///
    /// # Errors
    /// [`Failure::NotSent`] or [`Failure::Closed`] if the server cannot have read the request, else
    /// [`Failure::Unanswered`].
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<HttpReply, Failure> {
        self.send(method, path, body, limit)?;
        self.read_reply()
    }

    /// Posts a body without waiting for anything, and returns whether it did: see [`Stream::write_at_once`]. Nothing
    /// else is sent until [`read_posted`](Self::read_posted) has read the reply.
    ///
    /// # Errors
    /// As there: the connection must be closed.
    pub fn post_at_once(&mut self, path: &str, body: &[u8]) -> io::Result<bool> {
        let request = self.written("POST", path, body);
        self.reader.get_mut().write_at_once(&request)
    }

    /// Reads the reply to a request that was [posted at once](Self::post_at_once), within `limit`.
    ///
    /// # Errors
    /// [`Failure::Unanswered`].
    pub fn read_posted(&mut self, limit: Duration) -> Result<HttpReply, Failure> {
        self.reader.get_mut().begin(limit);
        self.read_reply()
    }

    /// Posts a body, and reads the head of an endless reply within `limit`. [`next_chunk`](Self::next_chunk) reads
    /// the rest. A reply with an end is an error of the server, and is returned.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub fn post_for_stream(
        &mut self,
        path: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<Option<HttpReply>, Failure> {
        self.send("POST", path, body, limit)?;
        let head = self.read_head().map_err(|error| self.unread(error))?;
        if head.status == 200 && matches!(head.length, Length::Chunked) {
            return Ok(None);
        }
        let reply = self.read_body(head);
        reply.map(Some).map_err(|error| self.unread(error))
    }

    /// Waits for the next part of a stream, within `limit` if there is one. Returns `None` at the
    /// end of the stream. [`TcpStream::shutdown`] on a clone of the [socket](Self::socket) ends the
    /// wait.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn next_chunk(&mut self, limit: Option<Duration>) -> Result<Option<Vec<u8>>, Failure> {
        let stream = self.reader.get_mut();
        match limit {
            Some(limit) => stream.begin(limit),
            None => stream.begin_without_limit(),
        }
        let chunk = self.read_chunk();
        chunk.map_err(|error| self.unread(error))
    }

    fn written(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let (common, length) = (&self.common, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\n{common}Content-Length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    fn send(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<(), Failure> {
        let request = self.written(method, path, body);
        let stream = self.reader.get_mut();
        stream.begin(limit);
        if let Err(error) = stream.write_all(&request) {
            // A plain socket takes a short request completely or not at all.
            let is_unsent = self.tls.is_none() && !is_timeout(error.kind());
            return Err(match is_unsent {
                true => Failure::NotSent(self.server.closed().with_source(error)),
                false => self.unread(error),
            });
        }
        Ok(())
    }

    fn read_reply(&mut self) -> Result<HttpReply, Failure> {
        let reply = self.read_head().and_then(|head| self.read_body(head));
        reply.map_err(|error| self.unread(error))
    }

    fn read_head(&mut self) -> io::Result<Head> {
        let line = self.read_line()?;
        let status = line
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1));
        let status = status.and_then(|code| code.parse().ok()).ok_or_else(bad)?;
        self.has_replied = true;
        if let Some(tls) = &self.tls {
            tls.store(true, Ordering::Relaxed);
        }
        let (mut length, mut lines) = (Length::Bytes(0), String::new());
        loop {
            let line = self.read_line()?;
            let Some((name, value)) = line.split_once(':') else {
                return Ok(Head {
                    status,
                    length,
                    lines,
                });
            };
            lines.push_str(&line);
            lines.push('\n');
            if name.eq_ignore_ascii_case("content-length") {
                let count = value.trim().parse().ok();
                length = Length::Bytes(count.filter(|it| *it <= MAX_REPLY).ok_or_else(bad)?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                length = Length::Chunked;
            } else if name.eq_ignore_ascii_case("connection") {
                self.is_last |= value.trim().eq_ignore_ascii_case("close");
            }
        }
    }

    fn read_body(&mut self, head: Head) -> io::Result<HttpReply> {
        Ok(HttpReply {
            body: match head.length {
                Length::Bytes(count) => self.read_bytes(count)?,
                Length::Chunked => self.read_chunks()?,
            },
            status: head.status,
            head: head.lines,
        })
    }

    fn read_bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut body = vec![0; count];
        self.reader.read_exact(&mut body)?;
        Ok(body)
    }

    fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.read_chunk()? {
            body.extend(chunk);
        }
        Ok(body)
    }

    /// Reads a chunk. Returns `None` after the last chunk and the headers behind it.
    fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.read_line()?;
        let size = line.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size.trim(), 16).ok();
        match size.filter(|size| *size <= MAX_REPLY).ok_or_else(bad)? {
            0 => {
                while !self.read_line()?.is_empty() {}
                Ok(None)
            }
            size => {
                let chunk = self.read_bytes(size)?;
                self.read_line()?;
                Ok(Some(chunk))
            }
        }
    }

    /// Reads a line without its end.
    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.reader)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            let is_cut = (line.len() as u64) < MAX_LINE - 1;
            return Err(match is_cut {
                true => io::ErrorKind::UnexpectedEof.into(),
                false => bad(),
            });
        }
        let line = String::from_utf8(line).map_err(|_| bad())?;
        Ok(line.trim_end_matches('\r').to_owned())
    }

    fn unread(&self, error: io::Error) -> Failure {
        let is_cut = !is_timeout(error.kind()) && error.kind() != io::ErrorKind::InvalidData;
        if is_cut && self.is_tls_known() && self.reader.get_ref().is_handshaking() {
            return Failure::Closed(self.server.closed().with_source(error));
        }
        Failure::Unanswered(self.describe(error))
    }

    /// Returns whether an earlier reply has shown that the store speaks TLS.
    fn is_tls_known(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|it| it.load(Ordering::Relaxed))
    }

    fn describe(&self, error: io::Error) -> Error {
        use io::ErrorKind::{ConnectionReset, InvalidData, UnexpectedEof};
        let tls = self.tls.is_some();
        let is_first = tls && !self.has_replied;
        let described = match error.kind() {
            kind if is_timeout(kind) => self.server.silent(),
            _ if is_too_long(&error) => self.server.too_long(self.has_replied),
            InvalidData if tls && is_untrusted(&error.to_string()) => {
                return self.server.untrusted(&error.to_string());
            }
            UnexpectedEof | ConnectionReset if self.is_tls_known() => self.server.cut(),
            InvalidData | UnexpectedEof | ConnectionReset if is_first => self
                .server
                .wrong_protocol(" with TLS, and does it accept this client's certificate?"),
            InvalidData => self.server.wrong_protocol(", and without TLS?"),
            _ => self.server.cut(),
        };
        described.with_source(error)
    }
}

fn bad() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
