//! A network that misbehaves on demand.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// As many connections at once as any test makes, and no more.
const MOST: usize = 1024;

/// How long the target may take to accept.
const CONNECT: Duration = Duration::from_secs(5);

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

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told of every change: of what is to be done, and of what has been counted.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    fault: Fault,
    /// Faults for single requests, in the order in which they were asked for.
    once: Vec<(Vec<u8>, Fault)>,
    /// Counts decisions, so that a cut knows whether its bytes are to be counted anew, and an armed
    /// fault whether a later `set` has overruled it.
    decision: u64,
    set_at: u64,
    connections: HashMap<u64, Connection>,
    counts: Counts,
    refusing: bool,
    /// Whether the port is open; the acceptor's answer to `refusing`.
    listening: bool,
    /// Why the port could not be opened again.
    broken: Option<io::ErrorKind>,
    closing: bool,
}

#[derive(Debug)]
struct Connection {
    ends: Vec<TcpStream>,
    /// The fault of the last request, which its replies share.
    armed: Option<(u64, Fault)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

impl Proxy {
    /// A proxy in front of `target`, which need not listen yet.
    ///
    /// # Errors
    /// No free port, or no thread.
    pub fn new(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                target,
                fault: Fault::Pass,
                once: Vec::new(),
                decision: 0,
                set_at: 0,
                connections: HashMap::new(),
                counts: Counts::default(),
                refusing: false,
                listening: true,
                broken: None,
                closing: false,
            }),
            changed: Condvar::new(),
        });
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

impl State {
    fn cut_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.cut(id);
        }
    }

    fn cut(&mut self, id: u64) {
        self.counts.cut += u64::from(self.close(id));
    }

    /// Closes both ends. False when that has happened before.
    fn close(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.remove(&id) else {
            return false;
        };
        for end in &connection.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        self.counts.open = self.connections.len() as u64;
        true
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        match until {
            None => self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                self.changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        }
    }

    /// The acceptor's thread; it ends when all connections' threads have.
    fn accept(self: &Arc<Self>, addr: SocketAddr, listener: TcpListener) {
        let mut listener = Some(listener);
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for id in 0.. {
            if !self.tend(addr, &mut listener) {
                break;
            }
            let Some(open) = &listener else { continue };
            let Ok((client, _)) = open.accept() else {
                continue;
            };
            threads.retain(|thread| !thread.is_finished());
            let mut state = self.lock();
            if state.closing || state.refusing || state.connections.len() >= MOST {
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
                },
            );
            state.counts.accepted += 1;
            state.counts.open = state.connections.len() as u64;
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

    /// Opens and closes the port as wanted. False when all is over.
    fn tend(&self, addr: SocketAddr, listener: &mut Option<TcpListener>) -> bool {
        let mut state = self.lock();
        loop {
            if state.closing {
                return false;
            }
            if state.refusing {
                *listener = None;
                state.listening = false;
                self.changed.notify_all();
            } else if listener.is_some() {
                return true;
            } else if state.broken.is_none() {
                match bind_again(addr) {
                    Ok(bound) => {
                        *listener = Some(bound);
                        state.listening = true;
                    }
                    Err(error) => state.broken = Some(error.kind()),
                }
                self.changed.notify_all();
                continue;
            }
            state = self.wait(state, None);
        }
    }

    /// One connection, until both its ends are closed.
    fn serve(self: &Arc<Self>, id: u64, client: &TcpStream) {
        if let Some(server) = self.reach_target(id) {
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            let replies = thread::Builder::new().name(format!("proxy-{id}-replies"));
            // The scope joins; nothing in there panics.
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

    fn reach_target(&self, id: u64) -> Option<TcpStream> {
        let target = {
            let mut state = self.lock();
            while state.fault == Fault::Dark && state.connections.contains_key(&id) {
                state = self.wait(state, None);
            }
            state.target
        };
        let server = TcpStream::connect_timeout(&target, CONNECT).ok()?;
        let end = server.try_clone().ok()?;
        // Cut meanwhile: nobody would ever close this end.
        self.lock().connections.get_mut(&id)?.ends.push(end);
        Some(server)
    }

    /// Carries bytes one way, until that way is closed or the connection is cut.
    fn pump(&self, id: u64, way: Way, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        let mut cut = (0, 0);
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
                (Way::Reply, Fault::DropReplies) => {
                    self.count(|counts| counts.dropped_replies += 1);
                    continue;
                }
                (Way::Reply, Fault::CutReplyAfter(bytes)) => {
                    if cut.0 != decision {
                        cut = (decision, bytes);
                    }
                    pass = chunk.get(..cut.1).unwrap_or(chunk);
                    cut.1 -= pass.len();
                }
                _ => {}
            }
            // Before they go: who has an answer finds it counted.
            self.count(|counts| match way {
                Way::Request => counts.request_bytes += pass.len() as u64,
                Way::Reply => counts.reply_bytes += pass.len() as u64,
            });
            let written = to.write_all(pass);
            let over = way == Way::Reply && matches!(fault, Fault::CutReplyAfter(_)) && cut.1 == 0;
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

    /// What is to be done with this chunk (empty: the end). Waits while it is dark; `None` once the
    /// connection is cut.
    fn judge(&self, id: u64, way: Way, chunk: &[u8]) -> Option<(u64, Fault)> {
        let mut state = self.lock();
        if !chunk.is_empty() {
            match way {
                Way::Request => {
                    state.counts.requests += 1;
                    let found = state
                        .once
                        .iter()
                        .position(|(needle, _)| contains(chunk, needle));
                    let armed = found.map(|found| {
                        state.decision += 1;
                        (state.decision, state.once.remove(found).1)
                    });
                    state.connections.get_mut(&id)?.armed = armed;
                }
                Way::Reply => state.counts.replies += 1,
            }
            self.changed.notify_all();
        }
        let mut waited = false;
        loop {
            let armed = state
                .connections
                .get(&id)?
                .armed
                .filter(|(decision, _)| *decision > state.set_at);
            let (decision, fault) = armed.unwrap_or((state.set_at, state.fault));
            if fault != Fault::Dark {
                return Some((decision, fault));
            }
            if !waited && !chunk.is_empty() {
                waited = true;
                state.counts.held += 1;
                self.changed.notify_all();
            }
            state = self.wait(state, None);
        }
    }

    /// Waits out a delay. False when the connection was cut meanwhile.
    fn hold(&self, id: u64, delay: Duration) -> bool {
        let until = Instant::now() + delay;
        let mut state = self.lock();
        state.counts.held += 1;
        self.changed.notify_all();
        while Instant::now() < until && state.connections.contains_key(&id) {
            state = self.wait(state, Some(until));
        }
        state.connections.contains_key(&id)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
        self.changed.notify_all();
    }
}

/// While it was closed, the port may for a moment be the near end of somebody's connection.
fn bind_again(addr: SocketAddr) -> io::Result<TcpListener> {
    let mut bound = TcpListener::bind(addr);
    for _ in 0..50 {
        if bound.is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
        bound = TcpListener::bind(addr);
    }
    bound
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty()
        || haystack
            .windows(needle.len())
            .any(|window| window == needle)
}
