//! The network between the members of a cluster, of which one can be cut off.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::until::found_within;

/// Leads connections from one member to another.
#[derive(Debug, Default)]
pub(crate) struct Network(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The names of the members, by their number.
    names: Vec<String>,
    cut_off: Vec<usize>,
    links: Vec<Link>,
    is_over: bool,
    doors: Vec<SocketAddr>,
}

/// A connection.
#[derive(Debug)]
struct Link {
    /// The name of the member that connected.
    from: String,
    to: usize,
    ends: [TcpStream; 2],
}

/// How a connection begins: the name of the member that has opened it, and the bytes that were read to learn it, as the
/// other member gets them.
pub(crate) type Greeting = (String, Vec<u8>);

/// How long a connection waits for a member that does not listen yet. A follower of ZooKeeper repeats a connection that a
/// new leader refuses yet, but not one that ends.
const LISTENING: Duration = Duration::from_secs(2);

impl State {
    fn is_cut(&self, from: &str, to: usize) -> bool {
        let is_off = |member: usize| self.cut_off.contains(&member);
        let from = self.names.iter().position(|name| name == from);
        is_off(to) || from.is_some_and(is_off)
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns the names of the members, by which greetings call them.
    pub(crate) fn know(&self, names: Vec<String>) {
        self.state().names = names;
    }

    /// Leads connections that come to `door` to the member number `to` at `port`. `greet` finds out who has opened one.
    pub(crate) fn lead(
        self: &Arc<Self>,
        door: TcpListener,
        (to, port): (usize, u16),
        greet: impl Fn(&mut TcpStream) -> Option<Greeting> + Send + Sync + 'static,
    ) -> io::Result<()> {
        self.state().doors.push(door.local_addr()?);
        let (network, greet) = (Arc::clone(self), Arc::new(greet));
        thread::Builder::new()
            .name("network".to_owned())
            .spawn(move || {
                for stream in door.incoming() {
                    if network.state().is_over {
                        return;
                    }
                    let Ok(mut stream) = stream else { continue };
                    let (network, greet) = (Arc::clone(&network), Arc::clone(&greet));
                    thread::spawn(move || {
                        let greeting = greet(&mut stream)?;
                        network.link(stream, greeting, (to, port))
                    });
                }
            })
            .map(drop)
    }

    fn link(
        &self,
        client: TcpStream,
        (from, greeting): Greeting,
        (to, port): (usize, u16),
    ) -> Option<()> {
        let mut server = found_within(LISTENING, || {
            let is_cut = self.state().is_cut(&from, to);
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            (!is_cut).then_some(()).ok_or_else(refused)?;
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
        })
        .ok()??;
        let ends = [client.try_clone().ok()?, server.try_clone().ok()?];
        {
            let mut state = self.state();
            if state.is_cut(&from, to) || state.is_over {
                return None;
            }
            state.links.push(Link { from, to, ends });
        }
        server.write_all(&greeting).ok()?;
        let (client_end, server_end) = (client.try_clone().ok()?, server.try_clone().ok()?);
        thread::spawn(move || carry(server_end, client_end));
        carry(client, server);
        Some(())
    }

    /// Cuts a member off from the others: their connections end, and new ones are closed.
    pub(crate) fn cut_off(&self, member: usize) {
        let mut state = self.state();
        state.cut_off.push(member);
        let links = std::mem::take(&mut state.links);
        for link in links {
            if state.is_cut(&link.from, link.to) {
                link.close();
            } else {
                state.links.push(link);
            }
        }
    }

    /// Connects all members again.
    pub(crate) fn join(&self) {
        self.state().cut_off.clear();
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.links.drain(..).for_each(|link| link.close());
        for door in &state.doors {
            // It wakes the thread that accepts.
            let _ = TcpStream::connect(door);
        }
    }
}

impl Link {
    fn close(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Carries bytes until one end closes.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let Some(bytes) = buffer.get(..count) else {
            break;
        };
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
