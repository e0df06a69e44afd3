//! One connection to a member.

mod channel;
pub(crate) mod connector;
pub(crate) mod link;
mod notices;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{
    Counts, Failure, MAX_REPLY, Members, OpenConnection, Server, Stream, is_timeout,
};

use crate::wire::{Decoder, Reply, Request};
pub(crate) use notices::Notices;

/// The number under which a notice comes.
const NOTICE: i32 = -1;
const PING: i32 = -2;
const AUTH: i32 = -4;

/// The bytes that are read at once: more than a record of TLS has.
const CHUNK: usize = 32 << 10;

/// What the connections of a provider share.
pub(crate) struct Learned {
    pub(crate) members: Members,
    /// The last transaction that any member has told of.
    zxid: AtomicI64,
    pub(crate) counts: Arc<Counts>,
}

impl Learned {
    fn zxid(&self) -> i64 {
        self.zxid.load(Ordering::Acquire)
    }
}

/// A connection; dropping it closes it.
pub(crate) struct Connection {
    stream: Stream,
    /// What has come of the next messages.
    unread: Vec<u8>,
    /// The number of the next request.
    number: i32,
    pub(crate) server: Server,
    member: usize,
    learned: Arc<Learned>,
    /// `None` once another connection replaces this one, and the server is about to close it.
    counted: Option<OpenConnection>,
}

impl Connection {
    /// Counts the connection no longer as one that is open.
    pub(crate) fn uncount(&mut self) {
        self.counted = None;
    }

    fn socket(&self) -> &Arc<TcpStream> {
        self.stream.socket()
    }

    /// Writes requests within `limit`, and returns the number of the first one.
    fn send(&mut self, requests: &[Request], limit: Duration) -> io::Result<i32> {
        let count = i32::try_from(requests.len()).unwrap_or(i32::MAX);
        if self.number > i32::MAX - count {
            self.number = 1;
        }
        let first = self.number;
        self.number += count;
        let mut bytes = Vec::new();
        for (number, request) in (first..).zip(requests) {
            request.put(number, &mut bytes);
        }
        self.learned.counts.add_commands(requests.len());
        self.stream.begin(limit);
        self.write(&bytes).map(|()| first)
    }

    /// Writes a request under a number that is the same for all of its kind.
    fn send_as(&mut self, number: i32, request: &Request, limit: Duration) -> io::Result<()> {
        let mut bytes = Vec::new();
        request.put(number, &mut bytes);
        self.stream.begin(limit);
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Reads what has come, or waits for more.
    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = self.stream.read(&mut chunk)?;
            self.unread.extend(chunk.get(..count).unwrap_or_default());
            match count {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                // More may have been decrypted.
                CHUNK => {}
                _ => return Ok(()),
            }
        }
    }

    /// Takes the next message, if all of it has come.
    fn take(&mut self) -> io::Result<Option<Vec<u8>>> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let mut from = Decoder(&self.unread);
        let Some(length) = from.int() else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| bad())?;
        if length > MAX_REPLY {
            return Err(bad());
        }
        let Some(message) = from.0.get(..length) else {
            return Ok(None);
        };
        let message = message.to_vec();
        self.unread.drain(..4 + length);
        Ok(Some(message))
    }

    /// Waits for the next message until the end of the exchange.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match self.take()? {
                Some(message) => return Ok(message),
                None => self.fill()?,
            }
        }
    }

    /// Takes the next reply, if all of it has come.
    fn take_reply(&mut self) -> io::Result<Option<Reply>> {
        let Some(message) = self.take()? else {
            return Ok(None);
        };
        let reply = Reply::read(&message).ok_or(io::ErrorKind::InvalidData)?;
        self.learned.zxid.fetch_max(reply.zxid, Ordering::AcqRel);
        Ok(Some(reply))
    }

    /// Makes requests and reads the replies, within `limit`. Nothing else uses the connection.
    pub(crate) fn ask(
        &mut self,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Reply>, Failure> {
        let replies = self.exchange(requests, limit);
        replies.map_err(|error| unanswered(&self.server, error))
    }

    fn exchange(&mut self, requests: &[Request], limit: Duration) -> io::Result<Vec<Reply>> {
        let first = self.send(requests, limit)?;
        let mut replies = Vec::with_capacity(requests.len());
        while replies.len() < requests.len() {
            match self.take_reply()? {
                Some(reply) if reply.number >= first => replies.push(reply),
                Some(_) => {}
                None => self.fill()?,
            }
        }
        Ok(replies)
    }
}

/// Returns the failure of requests whose replies did not come.
fn unanswered(server: &Server, error: io::Error) -> Failure {
    let described = match error.kind() {
        kind if is_timeout(kind) => server.silent(),
        io::ErrorKind::InvalidData => Error::new(
            ErrorKind::Unknown,
            format!(
                "{server} sent what is no reply to the request; the request may still be in flight"
            ),
        ),
        _ => server.cut(),
    };
    Failure::Unanswered(described.with_source(error))
}
