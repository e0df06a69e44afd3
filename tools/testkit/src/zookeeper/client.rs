//! A client to look at a server with. Each has a session of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest time to wait for a reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const CLOSE: i32 = -11;

const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const NOT_EMPTY: i32 = -111;

/// A connection to a server.
#[derive(Debug)]
pub struct ZooKeeperClient(TcpStream);

impl ZooKeeperClient {
    /// Connects, with a new session.
    ///
    /// # Errors
    /// The server takes no session, or does not answer within 30 s.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Self::connect_within(addr, REPLY_TIME)
    }

    /// Connects, with a limit for each reply. A server that starts never answers some of its first connections.
    pub(super) fn connect_within(addr: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        let mut client = Self(stream);
        // Version, last zxid, time-out, session, password.
        let mut hello = vec![0; 12];
        hello.extend(10_000_i32.to_be_bytes());
        hello.extend([0; 8]);
        hello.extend(16_i32.to_be_bytes());
        hello.extend([0; 16]);
        client.send(&hello)?;
        client.read().map(|_| client)
    }

    /// Sends a command of four letters, and returns the answer.
    ///
    /// # Errors
    /// There is no answer within 30 s.
    pub fn command(addr: SocketAddr, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&addr, REPLY_TIME)?;
        stream.set_read_timeout(Some(REPLY_TIME))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    }

    fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let length = i32::try_from(body.len()).map_err(io::Error::other)?;
        let mut message = length.to_be_bytes().to_vec();
        message.extend(body);
        self.0.write_all(&message)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length).min(16 << 20) as usize];
        self.0.read_exact(&mut body).map(|()| body)
    }

    /// Makes a request, and returns the error's number and the reply after its header.
    fn call(&mut self, kind: i32, body: &[u8]) -> io::Result<(i32, Vec<u8>)> {
        let mut request = 1_i32.to_be_bytes().to_vec();
        request.extend(kind.to_be_bytes());
        request.extend(body);
        self.send(&request)?;
        let mut reply = self.read()?;
        let body = reply.split_off(reply.len().min(16));
        let code = reply.get(12..).and_then(|it| it.try_into().ok());
        let code = code.map(i32::from_be_bytes);
        Ok((code.ok_or(io::ErrorKind::InvalidData)?, body))
    }

    fn ask(&mut self, kind: i32, path: &str, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut request = buffer(path.as_bytes());
        request.extend(body);
        match self.call(kind, &request)? {
            (0, reply) => Ok(Some(reply)),
            (NO_NODE | NODE_EXISTS, _) => Ok(None),
            (code, _) => Err(io::Error::other(format!("{path}: error {code}"))),
        }
    }

    /// Returns the names of a node's children; none if there is no such node.
    ///
    /// # Errors
    /// The server refuses, or does not answer within 30 s.
    pub fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        let reply = self.ask(GET_CHILDREN, path, &[0])?.unwrap_or_default();
        let mut rest = reply.get(4..).unwrap_or_default();
        let mut names = Vec::new();
        while let Some((name, after)) = first_buffer(rest) {
            names.push(String::from_utf8_lossy(name).into_owned());
            rest = after;
        }
        Ok(names)
    }

    /// Returns a node's value.
    ///
    /// # Errors
    /// As [`children`](Self::children).
    pub fn get(&mut self, path: &str) -> io::Result<Option<String>> {
        let reply = self.ask(GET_DATA, path, &[0])?;
        let text = |reply: Vec<u8>| {
            let (data, _) = first_buffer(&reply)?;
            Some(String::from_utf8_lossy(data).into_owned())
        };
        Ok(reply.and_then(text))
    }

    /// Sets a node's value, and returns whether there is such a node.
    ///
    /// # Errors
    /// As [`children`](Self::children).
    pub fn set(&mut self, path: &str, value: &[u8]) -> io::Result<bool> {
        let mut body = buffer(value);
        body.extend((-1_i32).to_be_bytes());
        Ok(self.ask(SET_DATA, path, &body)?.is_some())
    }

    /// Creates a node that every user may change, unless there is one.
    ///
    /// # Errors
    /// As [`children`](Self::children).
    pub fn create(&mut self, path: &str, value: &str) -> io::Result<()> {
        let mut body = buffer(value.as_bytes());
        body.extend(1_i32.to_be_bytes());
        body.extend(31_i32.to_be_bytes());
        body.extend(buffer(b"world"));
        body.extend(buffer(b"anyone"));
        body.extend(0_i32.to_be_bytes());
        self.ask(CREATE, path, &body).map(drop)
    }

    /// Deletes a node and all below it, each once: what a program makes meanwhile stays, and so does its parent.
    ///
    /// # Errors
    /// As [`children`](Self::children).
    pub fn delete(&mut self, path: &str) -> io::Result<()> {
        for child in self.children(path)? {
            self.delete(&format!("{path}/{child}"))?;
        }
        let mut request = buffer(path.as_bytes());
        request.extend((-1_i32).to_be_bytes());
        match self.call(DELETE, &request)? {
            (0 | NO_NODE | NOT_EMPTY, _) => Ok(()),
            (code, _) => Err(io::Error::other(format!("{path}: error {code}"))),
        }
    }
}

impl Drop for ZooKeeperClient {
    fn drop(&mut self) {
        let _ = self.call(CLOSE, &[]);
    }
}

fn buffer(bytes: &[u8]) -> Vec<u8> {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    let mut buffer = length.to_be_bytes().to_vec();
    buffer.extend(bytes);
    buffer
}

/// Splits the first buffer off.
fn first_buffer(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}
