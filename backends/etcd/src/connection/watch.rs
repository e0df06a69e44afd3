//! A watch, which has its connection for itself.

use std::net::TcpStream;
use std::time::Duration;

use lockkeeper_remote::{Failure, senseless};
use serde_json::Value;

use super::Connection;

/// The largest message that is read: some 10,000 events.
const LONGEST_MESSAGE: usize = 4 << 20;

/// A stream of messages; dropping it closes it.
pub(crate) struct Watch {
    connection: Connection,
    /// The bytes of the next messages that have come so far.
    unread: Vec<u8>,
    /// How many of these were searched, and have no end of a message.
    searched: usize,
}

impl Watch {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            unread: Vec::new(),
            searched: 0,
        }
    }

    /// Returns the socket. Shutting it down ends the stream.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.connection.socket()
    }

    /// Sends the requests for watches, whose messages follow.
    pub(crate) fn begin(&mut self, requests: &str, limit: Duration) -> Result<(), Failure> {
        let connection = &mut self.connection;
        connection.open.add_commands(1);
        let (http, body) = (&mut connection.http, requests.as_bytes());
        let reply = http.post_for_stream("/v3/watch", body, limit);
        match connection.noted(reply)? {
            None => Ok(()),
            Some(reply) => Err(connection.refused(&reply)),
        }
    }

    /// Waits for the next message, within `limit` if there is one. `None` is the end.
    pub(crate) fn next(&mut self, limit: Option<Duration>) -> Result<Option<Value>, Failure> {
        loop {
            // A message is a line, and a long one comes in several chunks.
            let read = self.unread.get(self.searched..).unwrap_or_default();
            if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                self.searched = 0;
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let message = serde_json::from_slice(&line);
                return message.map_err(|_| Failure::Refused(senseless()));
            }
            self.searched = self.unread.len();
            match self.connection.http.next_chunk(limit)? {
                Some(chunk) if self.searched < LONGEST_MESSAGE => self.unread.extend(chunk),
                Some(_) => return Err(Failure::Refused(senseless())),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::EtcdOptions;
    use crate::connection::connector::Connector;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns a watch of a server that sends these chunks again and again.
    fn watch(chunks: &'static [&'static str]) -> Watch {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = EtcdOptions::tcp("127.0.0.1", listener.local_addr().unwrap().port());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let mut reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
            loop {
                for chunk in chunks {
                    reply += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
                }
                // Until the client closes the connection.
                if stream.write_all(reply.as_bytes()).is_err() {
                    return;
                }
                reply.clear();
            }
        });
        let mut watch = Watch::new(Connector::new(&options).unwrap().connect(LIMIT).unwrap());
        watch.begin("{}", LIMIT).unwrap();
        watch
    }

    #[test]
    fn messages_are_lines_of_any_chunks() {
        let mut watch = watch(&["1", "2\n34\n5", "\n"]);
        for expected in [12, 34, 5, 12, 34] {
            let message = watch.next(Some(LIMIT)).unwrap();
            assert_eq!(message, Some(expected.into()));
        }
    }

    #[test]
    fn message_without_an_end_is_refused() {
        let mut watch = watch(&["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]);
        assert!(watch.next(Some(LIMIT)).is_err());
        assert!(watch.unread.len() <= LONGEST_MESSAGE + 48);
    }
}
