//! A network that misbehaves on demand.

mod carry;
mod shared;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shared::Shared;

/// What is done to the bytes that pass.
///
/// A *request* is what one read from the client gives, a *reply* what one read from the server gives:
/// commands sent in one write (a pipeline) share their fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// Requests are swallowed: the server never sees them.
    DropRequests,
    /// Replies are swallowed: the server has done what the client never hears of.
    DropReplies,
    /// Requests reach the server this much later.
    DelayRequests(Duration),
    /// Replies reach the client this much later.
    DelayReplies(Duration),
    /// The connection is cut (both ends) after so many more bytes of reply.
    CutReplyAfter(usize),
    /// Nothing passes, either way; connections are accepted and get no word. What was sent meanwhile
    /// passes afterwards, as on a network that comes back.
    Dark,
}

/// What has passed since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections that the proxy cut.
    pub cut: u64,
    /// Requests read from clients, whatever became of them.
    pub requests: u64,
    /// Replies read from the server, whatever became of them.
    pub replies: u64,
    /// Requests swallowed.
    pub dropped_requests: u64,
    /// Replies swallowed.
    pub dropped_replies: u64,
    /// Requests and replies that were held back: by a delay, or by the dark.
    pub held: u64,
    /// Bytes handed on to the server.
    pub request_bytes: u64,
    /// Bytes handed on to clients.
    pub reply_bytes: u64,
}

/// A TCP proxy on a free port of 127.0.0.1. Passes everything until told otherwise; can be told at any
/// time from any thread. Its threads and connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy in front of `target`, which need not listen yet.
    ///
    /// # Errors
    /// No free port, or no thread.
    pub fn new(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(target));
        let acceptor = thread::Builder::new().name("proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(addr, listener)
        })?;
        Ok(Self {
            addr,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on, for all connections, those that are open too. Takes back what [`Proxy::once`] has
    /// asked for.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.lock();
        state.fault = fault;
        state.once.clear();
        state.decision += 1;
        state.set_at = state.decision;
        self.shared.changed.notify_all();
    }

    /// For one request: the next that contains `needle` (empty: the next of all), and for what the
    /// server answers until that connection's next request. Several wait in a line, each for its own.
    pub fn once(&self, needle: impl AsRef<[u8]>, fault: Fault) {
        self.shared
            .lock()
            .once
            .push((needle.as_ref().to_vec(), fault));
    }

    /// Cuts every connection that is open now.
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.cut_all();
        self.shared.changed.notify_all();
    }

    /// Cuts every connection and closes the port: who connects is refused, as where no server runs.
    /// Returns when it is closed.
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

    /// Opens the port again after [`Proxy::refuse`]. Returns when it is open.
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

    /// Where new connections lead to from now on: after a fail-over, the other server.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.lock().target = target;
    }

    /// What has passed until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Waits until the counts are as wanted, at most `patience`; says whether they came to be.
    #[must_use]
    pub fn wait_for(&self, patience: Duration, mut wanted: impl FnMut(&Counts) -> bool) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.shared.lock();
        while !wanted(&state.counts) {
            if Instant::now() >= until {
                return false;
            }
            state = self.shared.wait(state, Some(until));
        }
        true
    }

    /// The acceptor sits in `accept`; a connection gets it out of there.
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
