//! A TCP proxy that drops, delays and cuts messages on demand.

mod carry;
mod shared;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use carry::listen_at_free_port;
use shared::Shared;

/// A fault of the network.
///
/// A *request* is what one read from the client returns; a *reply* is what one read from the server
/// returns. So all commands of one write (a pipeline) are one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Everything passes.
    Pass,
    /// Requests are dropped: the server does not receive them.
    DropRequests,
    /// Replies are dropped: the server has carried out the request, and the client gets no reply. No stream leaves a part
    /// out, so if more of the same reply comes when the fault is over, the connection is cut.
    DropReplies,
    /// For [`Proxy::once`]: the server carries out the request, and nothing else passes either way. So the server does not
    /// see that the client closes the connection, before the fault is over.
    HalfOpen,
    /// Requests reach the server later by this time.
    DelayRequests(Duration),
    /// Replies reach the client later by this time.
    DelayReplies(Duration),
    /// Replies reach the client byte by byte, with this time after each byte. When the fault is over, the rest of a reply
    /// passes at once.
    DripReplies(Duration),
    /// The connection is cut (both ends) after this many further bytes of replies.
    CutReplyAfter(usize),
    /// After this many further bytes of replies on a connection, its replies stop in silence. They pass when the fault is
    /// over.
    SilentReplyAfter(usize),
    /// Nothing passes either way, and new connections are accepted in silence. What was sent meanwhile
    /// passes afterwards, as on a network that recovers.
    Dark,
}

/// Counts since the start of the proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections whose client has not closed its end.
    pub open: u64,
    /// Connections that the proxy cut.
    pub cut: u64,
    /// Requests read from clients, including lost ones.
    pub requests: u64,
    /// Replies read from the server, including lost ones.
    pub replies: u64,
    /// Requests dropped.
    pub dropped_requests: u64,
    /// Replies dropped.
    pub dropped_replies: u64,
    /// Requests and replies that were held back, as a whole or in part.
    pub held: u64,
    /// Those that were sent on after their delay.
    pub late: u64,
    /// Bytes written to the server.
    pub request_bytes: u64,
    /// Bytes written to clients.
    pub reply_bytes: u64,
}

/// A TCP proxy on a free port of 127.0.0.1. It passes everything until a fault is set; all methods can be
/// called from any thread. Its threads and connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `target`, which need not listen yet.
    ///
    /// # Errors
    /// No free port, or no thread.
    pub fn new(target: SocketAddr) -> io::Result<Self> {
        let listener = listen_at_free_port()?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(target));
        let acceptor = thread::Builder::new().name("proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(listener)
        })?;
        Ok(Self {
            addr,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Returns the address that clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the fault of all connections, including open ones. Cancels the faults of [`Proxy::once`].
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.lock();
        state.fault = fault;
        state.once.clear();
        state.decision += 1;
        state.set_at = state.decision;
        self.shared.changed.notify_all();
    }

    /// Applies a fault to the next request that contains `needle`, and to its replies until the next request
    /// of that connection. A cut applies to whatever replies come next on that connection, since a client may send
    /// several requests at once. An empty `needle` matches every request. Several such faults apply in order, each once.
    pub fn once(&self, needle: impl AsRef<[u8]>, fault: Fault) {
        self.shared
            .lock()
            .once
            .push((needle.as_ref().to_vec(), fault));
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.cut_all();
        self.shared.changed.notify_all();
    }

    /// Cuts all connections and closes the port, so that clients are refused as if no server ran. Returns
    /// when the port is closed.
    pub fn refuse(&self) {
        let mut state = self.shared.lock();
        state.refusing = true;
        state.cut_all();
        self.shared.changed.notify_all();
        drop(state);
        self.wake_acceptor();
        let mut state = self.shared.lock();
        while state.listening && state.refusing {
            state = self.shared.wait(state, None);
        }
    }

    /// Opens the port again after [`Proxy::refuse`]. Returns when the port is open.
    ///
    /// # Errors
    /// Another process has taken the port.
    pub fn accept(&self) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.refusing = false;
        state.broken = None;
        self.shared.changed.notify_all();
        loop {
            if let Some(error) = state.broken {
                return Err(error.into());
            }
            if state.listening {
                return Ok(());
            }
            state = self.shared.wait(state, None);
        }
    }

    /// Leads new connections to another server, as after a fail-over.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.lock().target = target;
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Waits until `wanted` holds, at most `timeout`. Returns whether it holds.
    #[must_use]
    pub fn wait_for(&self, timeout: Duration, mut wanted: impl FnMut(&Counts) -> bool) -> bool {
        let until = Instant::now() + timeout;
        let mut state = self.shared.lock();
        while !wanted(&state.counts) {
            if Instant::now() >= until {
                return false;
            }
            state = self.shared.wait(state, Some(until));
        }
        true
    }

    /// Connects once, so that the acceptor returns from `accept`.
    fn wake_acceptor(&self) {
        let _ = TcpStream::connect_timeout(&self.addr, Duration::from_secs(1));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closing = true;
            state.cut_all();
            self.shared.changed.notify_all();
        }
        self.wake_acceptor();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}
