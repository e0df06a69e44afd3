//! Messages to and from a server. Each exchange has a time limit.
//!
//! The client uses the codec `postgres-protocol`. The crate `postgres` runs tokio inside, and its calls have no
//! time-out: a stopped server would block the caller.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lockkeeper_remote::Stream;
use postgres_protocol::message::backend::{Header, Message};

/// No reply to a lock is longer, in bytes. If a message claims to be longer, the server is no PostgreSQL
/// server.
const MOST_BYTES: i32 = 1 << 20;

/// A connection's messages.
pub(crate) struct Wire {
    stream: Stream,
    /// The messages to send next.
    pub(crate) out: BytesMut,
    received: BytesMut,
}

impl Wire {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            out: BytesMut::new(),
            received: BytesMut::new(),
        }
    }

    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        self.stream.socket()
    }

    /// Sends the messages in `out`. The whole reply has to arrive within `limit`.
    pub(crate) fn send(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.begin(limit);
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        sent?;
        self.stream.flush()
    }

    /// Sends the messages in `out` if the socket takes all of them at once. Returns false if it took none.
    pub(crate) fn send_at_once(&mut self) -> io::Result<bool> {
        let sent = self.stream.write_at_once(&self.out);
        self.out.clear();
        sent
    }

    /// Returns the next message.
    pub(crate) fn receive(&mut self) -> io::Result<Message> {
        loop {
            let header = Header::parse(&self.received)?;
            if header.is_some_and(|header| header.len() > MOST_BYTES) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if let Some(message) = Message::parse(&mut self.received)? {
                return Ok(message);
            }
            let mut bytes = [0; 4096];
            let read = self.stream.read(&mut bytes)?;
            match bytes.get(..read) {
                Some(bytes @ [_, ..]) => self.received.extend_from_slice(bytes),
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// Returns whether the server sent nothing since its last reply.
    pub(crate) fn is_quiet(&self) -> bool {
        self.received.is_empty() && lockkeeper_remote::is_quiet(self.stream.socket())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use lockkeeper_remote::{Dialer, Endpoint, RemoteOptions, Server, is_timeout};

    use super::*;

    #[test]
    fn notices_give_a_reply_no_more_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..200 {
                // A notice without fields.
                if stream.write_all(b"N\0\0\0\x05\0").is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        let options = RemoteOptions::new(Endpoint::tcp("127.0.0.1", port));
        let server = Server::new("PostgreSQL", &Endpoint::tcp("127.0.0.1", port));
        let dialer = Dialer::new(&options).unwrap();
        let stream = dialer.dial(&server, Duration::from_secs(30)).unwrap();
        let mut wire = Wire::new(stream);
        wire.send(Duration::from_millis(100)).unwrap();
        let error = loop {
            if let Err(error) = wire.receive() {
                break error;
            }
        };
        assert!(is_timeout(error.kind()), "{error}");
    }
}
