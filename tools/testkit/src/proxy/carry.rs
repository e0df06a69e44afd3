//! The threads of the proxy: one accepts connections, and two for each connection carry its bytes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen, shutdown, socket_with, sockopt,
};

use super::Fault;
use super::shared::{Connection, Shared, Way};
use crate::daemon;

/// The highest number of connections at a time.
const MAX_CONNECTIONS: usize = 1024;

/// How many clients may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long the target may take to accept.
const CONNECT: Duration = Duration::from_secs(5);

impl Shared {
    /// Runs the acceptor's thread, which ends after the threads of all connections.
    pub(super) fn accept(self: &Arc<Self>, listener: TcpListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for id in 0.. {
            if !self.update_listener(&listener) {
                break;
            }
            let Ok((client, _)) = listener.accept() else {
                continue;
            };
            threads.retain(|thread| !thread.is_finished());
            let mut state = self.lock();
            if state.closing || state.refusing || state.connections.len() >= MAX_CONNECTIONS {
                continue;
            }
            let Ok(end) = client.try_clone() else {
                continue;
            };
            state.connections.insert(
                id,
                Connection {
                    ends: vec![end],
                    armed: None,
                    has_gap: false,
                    is_left: false,
                },
            );
            state.counts.accepted += 1;
            state.count_open();
            self.changed.notify_all();
            drop(state);
            let shared = Arc::clone(self);
            match thread::Builder::new()
                .name(format!("proxy-{id}"))
                .spawn(move || shared.serve(id, &client))
            {
                Ok(thread) => threads.push(thread),
                Err(_) => self.lock().cut(id),
            }
        }
        drop(listener);
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Opens and closes the port as `State::refusing` says. Returns false when the proxy is dropped.
    fn update_listener(&self, listener: &TcpListener) -> bool {
        let mut state = self.lock();
        loop {
            if state.closing {
                return false;
            }
            if state.refusing {
                if state.listening {
                    // Clients are refused, and this socket keeps the port. Without SO_REUSEADDR, no server can
                    // share the port.
                    let closed = shutdown(listener, rustix::net::Shutdown::Read)
                        .and_then(|()| sockopt::set_socket_reuseaddr(listener, false));
                    state.broken = closed.err().map(|errno| io::Error::from(errno).kind());
                    state.listening = false;
                }
                self.changed.notify_all();
            } else if state.listening {
                return true;
            } else if state.broken.is_none() {
                let opened = sockopt::set_socket_reuseaddr(listener, true)
                    .and_then(|()| listen(listener, BACKLOG));
                match opened {
                    Ok(()) => state.listening = true,
                    Err(errno) => state.broken = Some(io::Error::from(errno).kind()),
                }
                self.changed.notify_all();
                continue;
            }
            state = self.wait(state, None);
        }
    }

    /// Serves one connection until both its ends are closed.
    fn serve(self: &Arc<Self>, id: u64, client: &TcpStream) {
        if let Some(server) = self.connect_target(id) {
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            let replies = thread::Builder::new().name(format!("proxy-{id}-replies"));
            // The scope joins the thread, which does not panic.
            thread::scope(|scope| {
                if replies
                    .spawn_scoped(scope, || self.pump(id, Way::Reply, &server, client))
                    .is_ok()
                {
                    self.pump(id, Way::Request, client, &server);
                }
            });
        }
        let _ = client.shutdown(Shutdown::Both);
        self.lock().close(id);
        self.changed.notify_all();
    }

    fn connect_target(&self, id: u64) -> Option<TcpStream> {
        let target = {
            let mut state = self.lock();
            while state.fault == Fault::Dark && state.connections.contains_key(&id) {
                state = self.wait(state, None);
            }
            state.target
        };
        let server = TcpStream::connect_timeout(&target, CONNECT).ok()?;
        let end = server.try_clone().ok()?;
        // If the connection was cut meanwhile, it is no longer in the map. Then this end is dropped.
        self.lock().connections.get_mut(&id)?.ends.push(end);
        Some(server)
    }

    /// Carries bytes in one direction, until that direction is closed or the connection is cut.
    fn pump(&self, id: u64, way: Way, mut from: &TcpStream, to: &TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        // A decision's number, and how many bytes of replies still pass under that decision.
        let mut left = (0, 0);
        loop {
            let read = match from.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let chunk = buffer.get(..read).unwrap_or_default();
            let Some((decision, fault)) = self.judge(id, way, chunk) else {
                return;
            };
            if chunk.is_empty() {
                let _ = to.shutdown(Shutdown::Write);
                if way == Way::Request {
                    self.lock().leave(id);
                    self.changed.notify_all();
                }
                return;
            }
            let delay = match (way, fault) {
                (Way::Request, Fault::DelayRequests(delay))
                | (Way::Reply, Fault::DelayReplies(delay)) => Some(delay),
                _ => None,
            };
            if delay.is_some_and(|delay| !self.hold(id, delay)) {
                return;
            }
            let mut pass = chunk;
            match (way, fault) {
                (Way::Request, Fault::DropRequests) => {
                    self.count(|counts| counts.dropped_requests += 1);
                    continue;
                }
                (Way::Reply, Fault::DropReplies | Fault::HalfOpen) => {
                    self.count(|counts| counts.dropped_replies += 1);
                    continue;
                }
                (Way::Reply, Fault::CutReplyAfter(bytes) | Fault::SilentReplyAfter(bytes)) => {
                    if left.0 != decision {
                        left = (decision, bytes);
                    }
                    pass = chunk.get(..left.1).unwrap_or(chunk);
                    left.1 -= pass.len();
                }
                (Way::Reply, Fault::DripReplies(_)) => pass = &[],
                _ => {}
            }
            let mut rest = chunk.get(pass.len()..).unwrap_or_default();
            let mut written = self.write(way, to, pass);
            match fault {
                Fault::CutReplyAfter(_) => rest = &[],
                Fault::DripReplies(interval) if way == Way::Reply => {
                    self.count(|counts| counts.held += 1);
                    while let Some((byte, further)) = rest.split_first()
                        && written.is_ok()
                        && self.is_current(id, decision)
                    {
                        written = self.write(way, to, &[*byte]);
                        rest = further;
                        let until = Some(Instant::now() + interval);
                        self.wait_while_current(id, decision, until);
                    }
                }
                Fault::SilentReplyAfter(_) if !rest.is_empty() => {
                    self.count(|counts| counts.held += 1);
                    self.wait_while_current(id, decision, None);
                }
                _ => {}
            }
            written = written.and_then(|()| self.write(way, to, rest));
            if delay.is_some() {
                self.count(|counts| counts.late += 1);
            }
            let over = way == Way::Reply && matches!(fault, Fault::CutReplyAfter(_)) && left.1 == 0;
            if over || written.is_err() {
                let mut state = self.lock();
                if over {
                    state.cut(id);
                } else {
                    state.close(id);
                }
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Forwards bytes. They are counted first, so a client that has its reply finds it counted.
    fn write(&self, way: Way, mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.count(|counts| match way {
            Way::Request => counts.request_bytes += bytes.len() as u64,
            Way::Reply => counts.reply_bytes += bytes.len() as u64,
        });
        to.write_all(bytes)
    }
}

/// Listens at a free port. The socket is bound to a port number, so Linux keeps the port for it while it does not
/// listen. A port that the kernel chose would then be free, and any client could get it.
pub(super) fn listen_at_free_port() -> io::Result<TcpListener> {
    daemon::retry_on_taken_port(|| {
        let [port] = daemon::free_ports()?;
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        listen(&socket, BACKLOG)?;
        Ok(socket.into())
    })
}
