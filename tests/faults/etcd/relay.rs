//! A relay that holds requests of a keeper, or answers them itself.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

/// A request is meant that contains all of them.
pub(super) type Needles = &'static [&'static str];

const UNFIT: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// Requests that do not reach the server until the test sends them: each entry of `needles` is for one request, which
/// contains all of them.
///
/// [`Fault::Dark`] does not suffice: after the request, the end of the connection passes as well, and etcd may then
/// cancel the request.
#[derive(Default)]
pub(super) struct Held {
    pub(super) needles: Vec<Needles>,
    pub(super) requests: Vec<Vec<u8>>,
    /// The next request that contains these passes between two waits for the barrier.
    pub(super) paused: Option<(Needles, Arc<Barrier>)>,
    /// Requests that contain this are answered as by a member that cannot serve.
    pub(super) refused: Option<&'static str>,
    /// Requests that contain this are carried out, and have a reply that is not etcd's.
    pub(super) unreadable: Option<(&'static str, &'static [u8])>,
    /// Whether the server closes a connection after each reply.
    pub(super) closes: bool,
    /// The streams of watches, each with its request and its reply so far.
    pub(super) streams: Vec<[String; 2]>,
}

impl Held {
    /// Keeps a request if it is to be held.
    fn takes(&mut self, request: &[u8]) -> bool {
        let found = self.needles.iter().position(|all| has(request, all));
        let Some(found) = found else { return false };
        self.needles.remove(found);
        self.requests.push(request.to_vec());
        true
    }

    /// Returns the barrier of a request that is to pause.
    fn pauses(&mut self, request: &[u8]) -> Option<Arc<Barrier>> {
        let paused = self.paused.take_if(|(all, _)| has(request, all));
        paused.map(|(_, barrier)| barrier)
    }

    /// Returns the number of a new stream if a request is for one.
    fn stream(&mut self, request: &[u8]) -> Option<usize> {
        has(request, &["/v3/watch"]).then(|| {
            let request = String::from_utf8_lossy(request).into_owned();
            self.streams.push([request, String::new()]);
            self.streams.len() - 1
        })
    }

    /// Returns whether the last stream has watches for waiters, and all are confirmed.
    pub(super) fn is_watched(&self) -> bool {
        self.streams.last().is_some_and(|[request, reply]| {
            let asked = request.matches("create_request").count();
            asked > 1 && reply.matches(r#""created":true"#).count() == asked
        })
    }

    /// If the reply to this request is to be replaced, sends the request to the server, and returns the other
    /// reply.
    fn replaces(&self, request: &[u8], target: SocketAddr) -> Option<&'static [u8]> {
        let (_, reply) = self.unreadable.filter(|(it, _)| has(request, &[it]))?;
        let mut server = TcpStream::connect(target).unwrap();
        server.write_all(&closing(request)).unwrap();
        server.read_to_end(&mut Vec::new()).unwrap();
        Some(reply)
    }

    fn refuses(&self, request: &[u8]) -> bool {
        self.refused.is_some_and(|it| has(request, &[it]))
    }
}

fn has(request: &[u8], all: &[&str]) -> bool {
    let text = String::from_utf8_lossy(request);
    all.iter().all(|it| text.contains(it))
}

/// Returns a request after which the server closes the connection.
fn closing(request: &[u8]) -> Vec<u8> {
    let text = str::from_utf8(request).unwrap();
    text.replacen("Host:", "Connection: close\r\nHost:", 1)
        .into()
}

/// Leads connections to `target`, and returns the address for them.
pub(super) fn relay(held: &Arc<Mutex<Held>>, target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let held = Arc::clone(held);
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            // The case is over.
            let Ok(mut server) = TcpStream::connect(target) else {
                return;
            };
            let (mut replies, mut end) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let stream = Arc::<Mutex<Option<usize>>>::default();
            let (of_replies, is_stream) = (Arc::clone(&held), Arc::clone(&stream));
            thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count @ 1..) = replies.read(&mut buffer) {
                    let reply = buffer.get(..count).unwrap();
                    if let Some(stream) = *is_stream.lock().unwrap() {
                        let mut held = of_replies.lock().unwrap();
                        let [_, told] = held.streams.get_mut(stream).unwrap();
                        told.push_str(&String::from_utf8_lossy(reply));
                    }
                    if end.write_all(reply).is_err() {
                        break;
                    }
                }
                let _ = end.shutdown(Shutdown::Both);
            });
            let held = Arc::clone(&held);
            thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count @ 1..) = client.read(&mut buffer) {
                    let request = buffer.get(..count).unwrap();
                    let barrier = held.lock().unwrap().pauses(request);
                    if let Some(barrier) = barrier {
                        barrier.wait();
                        barrier.wait();
                    }
                    let mut held = held.lock().unwrap();
                    *stream.lock().unwrap() = held.stream(request);
                    let sent = if held.refuses(request) {
                        client.write_all(UNFIT)
                    } else if let Some(reply) = held.replaces(request, target) {
                        client.write_all(reply)
                    } else if held.closes {
                        server.write_all(&closing(request))
                    } else if held.takes(request) {
                        Ok(())
                    } else {
                        server.write_all(request)
                    };
                    drop(held);
                    if sent.is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    addr
}
