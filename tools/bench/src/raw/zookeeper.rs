//! ZooKeeper: an ephemeral node is made, and deleted.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::{Done, PIPELINE, Raw, expect};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const MULTI: i32 = 14;
/// The kind of a part of a transaction that failed.
const FAILED: i32 = -1;

/// The value of a lock's node.
const VALUE: &[u8] = b"3f0c8dbe-5d9b-4c3c-9a5e-0a4b7c1d2e3f/4026531836";
/// The time-out of the session, which no row outlives.
const SESSION_MS: i32 = 3_600_000;

/// A connection with a session, on which prepared requests are sent.
pub(crate) struct RawZooKeeper {
    stream: TcpStream,
    pair: [Vec<u8>; 2],
    pairs: [Vec<u8>; 2],
    set: [Vec<u8>; 1],
}

fn buffer(bytes: &[u8]) -> Vec<u8> {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    [&length.to_be_bytes(), bytes].concat()
}

fn numbers(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
}

fn path(number: usize) -> Vec<u8> {
    buffer(format!("/raw-seat:{number}").as_bytes())
}

/// A kind of request, and its body.
type Request = (i32, Vec<u8>);

fn create(number: usize) -> Request {
    // All rights for everybody.
    let rights = [numbers(&[1, 31]), buffer(b"world"), buffer(b"anyone")].concat();
    let body = [path(number), buffer(VALUE), rights, numbers(&[1])];
    (CREATE, body.concat())
}

fn delete(number: usize) -> Request {
    (DELETE, [path(number), numbers(&[-1])].concat())
}

fn multi(parts: impl Iterator<Item = Request>) -> Request {
    let part = |(kind, body): Request| [numbers(&[kind]), vec![0], numbers(&[-1]), body].concat();
    let end = [numbers(&[-1]), vec![1], numbers(&[-1])].concat();
    (MULTI, parts.map(part).chain([end]).flatten().collect())
}

fn message((kind, body): Request) -> Vec<u8> {
    buffer(&[numbers(&[1, kind]), body].concat())
}

impl RawZooKeeper {
    pub(crate) fn connect(addr: SocketAddr) -> Done<Self> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        // Version, last transaction, time-out, session and password.
        let greeting = [numbers(&[0, 0, 0, SESSION_MS, 0, 0]), buffer(&[0; 16])];
        send(&mut stream, &buffer(&greeting.concat()))?;
        let names = 0..PIPELINE;
        let root = [buffer(b"/"), buffer(VALUE), numbers(&[-1])];
        Ok(Self {
            stream,
            pair: [create(42), delete(42)].map(message),
            pairs: [multi(names.clone().map(create)), multi(names.map(delete))].map(message),
            set: [message((SET_DATA, root.concat()))],
        })
    }
}

/// Sends requests, one after the other.
fn send_all(stream: &mut TcpStream, requests: &[Vec<u8>]) -> Done {
    for request in requests {
        let reply = send(stream, request)?;
        // After two other numbers comes the error, and then the kind of the first part.
        expect(reply.get(12..16) == Some(&[0; 4]))?;
        expect(reply.get(16..20) != Some(&FAILED.to_be_bytes()))?;
    }
    Ok(())
}

fn send(stream: &mut TcpStream, message: &[u8]) -> Done<Vec<u8>> {
    stream.write_all(message)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut reply = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

impl Raw for RawZooKeeper {
    fn pair(&mut self) -> Done {
        send_all(&mut self.stream, &self.pair)
    }

    fn pairs(&mut self) -> Done<usize> {
        send_all(&mut self.stream, &self.pairs)?;
        Ok(PIPELINE)
    }

    /// Writes, as a release does.
    fn round_trip(&mut self) -> Done {
        send_all(&mut self.stream, &self.set)
    }
}
