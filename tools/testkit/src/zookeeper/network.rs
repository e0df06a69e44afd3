//! The network between the members of an ensemble, of which one can be cut off.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::until::found_within;

/// Leads connections from one member to another.
#[derive(Debug, Default)]
pub(super) struct Network(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    cut_off: Vec<usize>,
    links: Vec<(Way, [TcpStream; 2])>,
    is_over: bool,
    doors: Vec<SocketAddr>,
}

/// The numbers of the member that connects, and of the other.
pub(super) type Way = (usize, usize);

/// A way for elections begins with the protocol's version and the sender's number, and then has the address at which the
/// sender can be reached. That would lead past the network.
const ADDRESS_AT: usize = 20;

/// How long a connection waits for a member that does not listen yet.
const LISTENING: Duration = Duration::from_secs(2);

impl State {
    fn is_cut(&self, (from, to): Way) -> bool {
        self.cut_off.contains(&from) || self.cut_off.contains(&to)
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leads connections to `port`. With `back`, it is a way for elections, and the sender can be reached at that port.
    pub(super) fn lead(
        self: &Arc<Self>,
        listener: TcpListener,
        way: Way,
        port: u16,
        back: Option<u16>,
    ) -> io::Result<()> {
        self.state().doors.push(listener.local_addr()?);
        let network = Arc::clone(self);
        thread::Builder::new()
            .name("zookeeper network".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    if network.state().is_over {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let network = Arc::clone(&network);
                    thread::spawn(move || network.link(stream, way, port, back));
                }
            })
            .map(drop)
    }

    fn link(&self, mut client: TcpStream, way: Way, port: u16, back: Option<u16>) -> Option<()> {
        // A follower repeats a connection that a new leader refuses yet, but not one that ends.
        let mut server = found_within(LISTENING, || {
            let is_cut = self.state().is_cut(way);
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            (!is_cut).then_some(()).ok_or_else(refused)?;
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
        })
        .ok()??;
        let ends = [client.try_clone().ok()?, server.try_clone().ok()?];
        {
            let mut state = self.state();
            if state.is_cut(way) || state.is_over {
                return None;
            }
            state.links.push((way, ends));
        }
        let (client_end, server_end) = (client.try_clone().ok()?, server.try_clone().ok()?);
        thread::spawn(move || carry(server_end, client_end));
        if let Some(back) = back {
            let mut head = [0; ADDRESS_AT];
            client.read_exact(&mut head).ok()?;
            let (_, length) = head.split_last_chunk::<4>()?;
            let mut address = vec![0; u32::from_be_bytes(*length).min(1000) as usize];
            client.read_exact(&mut address).ok()?;
            // All ports have five digits.
            let at = address.len().checked_sub(5)?;
            address.truncate(at);
            address.extend(back.to_string().bytes());
            server.write_all(&head).ok()?;
            server.write_all(&address).ok()?;
        }
        carry(client, server);
        Some(())
    }

    /// Cuts a member off from the others: their connections end, and new ones are closed.
    pub(super) fn cut_off(&self, member: usize) {
        let mut state = self.state();
        state.cut_off.push(member);
        let links = std::mem::take(&mut state.links);
        for (way, ends) in links {
            if state.is_cut(way) {
                close(&ends);
            } else {
                state.links.push((way, ends));
            }
        }
    }

    /// Connects all members again.
    pub(super) fn join(&self) {
        self.state().cut_off.clear();
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.links.drain(..).for_each(|(_, ends)| close(&ends));
        for door in &state.doors {
            // It wakes the thread that accepts.
            let _ = TcpStream::connect(door);
        }
    }
}

fn close(ends: &[TcpStream; 2]) {
    for end in ends {
        let _ = end.shutdown(Shutdown::Both);
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
