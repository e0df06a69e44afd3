//! The network between the members of a cluster, of which one can be cut off.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Leads connections to the members, each from another member.
#[derive(Debug, Default)]
pub(super) struct Network(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The members' ids in etcd, by their number.
    ids: Vec<String>,
    cut_off: Vec<usize>,
    links: Vec<Link>,
    is_over: bool,
    doors: Vec<SocketAddr>,
}

/// A connection.
#[derive(Debug)]
struct Link {
    /// The id of the member that connected.
    from: String,
    to: usize,
    ends: [TcpStream; 2],
}

impl State {
    fn is_cut(&self, from: &str, to: usize) -> bool {
        let is_off = |member: usize| self.cut_off.contains(&member);
        let from = self.ids.iter().position(|id| id == from);
        is_off(to) || from.is_some_and(is_off)
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leads connections to the member number `to`, and returns the address for them.
    pub(super) fn lead_to(self: &Arc<Self>, to: usize, port: u16) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let door = listener.local_addr()?;
        self.state().doors.push(door);
        let network = Arc::clone(self);
        thread::Builder::new()
            .name("etcd network".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    if network.state().is_over {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let network = Arc::clone(&network);
                    thread::spawn(move || network.link(stream, to, port));
                }
            })?;
        Ok(door)
    }

    /// Carries a connection. The head of its first request tells which member has opened it.
    fn link(&self, mut client: TcpStream, to: usize, port: u16) -> Option<()> {
        let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
            head.extend(buffer.get(..count)?);
        }
        let text = String::from_utf8_lossy(&head);
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        let from = lines.find(|(name, _)| name.eq_ignore_ascii_case("x-server-from"));
        let from = from.map_or("", |(_, id)| id).trim().to_owned();
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        let ends = [client.try_clone().ok()?, server.try_clone().ok()?];
        {
            let mut state = self.state();
            if state.is_cut(&from, to) {
                return None;
            }
            state.links.push(Link { from, to, ends });
        }
        server.write_all(&head).ok()?;
        let (client_end, server_end) = (client.try_clone().ok()?, server.try_clone().ok()?);
        thread::spawn(move || carry(server_end, client_end));
        carry(client, server);
        Some(())
    }

    /// Learns the members' ids.
    pub(super) fn know(&self, ids: Vec<String>) {
        self.state().ids = ids;
    }

    /// Cuts a member off from the others: their connections end, and new ones are closed.
    pub(super) fn cut_off(&self, member: usize) {
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
    pub(super) fn join(&self) {
        self.state().cut_off.clear();
    }

    pub(super) fn close(&self) {
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
