//! A thread that notices when a server closes a connection, whether or not the connection is in use.
//!
//! The thread watches connections, not sessions. A session is made for each grant, and adding it would cost two
//! wake-ups for each lock and release.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// The pause after a poll that failed, such as for want of memory.
const RETRY: Duration = Duration::from_secs(1);

/// A set of sockets whose end is noticed at once.
///
/// The first socket starts a thread, which sleeps until a peer closes its connection, and ends with the set.
/// If a peer disappears without closing, the kernel notices: by keep-alive probes, or when a request gets no
/// acknowledgement.
pub struct SocketWatch {
    thread_name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    sockets: BTreeMap<u64, Entry>,
    last_id: u64,
    /// Wakes the thread by a byte. `None` before the thread's start.
    wake: Option<UnixStream>,
    is_over: bool,
}

struct Entry {
    socket: Arc<TcpStream>,
    has_ended: Arc<AtomicBool>,
    on_end: Box<dyn FnOnce() + Send>,
}

/// A socket of a [`SocketWatch`]. Dropping it takes the socket out of the set.
pub struct WatchedSocket {
    id: u64,
    has_ended: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl SocketWatch {
    /// Makes a set without sockets. `thread_name` is the name of its thread, of which Linux shows 15 bytes.
    pub fn new(thread_name: &'static str) -> Self {
        Self {
            thread_name,
            shared: Arc::default(),
        }
    }

    /// Watches a socket. When its peer closes the connection, the set's thread calls `on_end`, which
    /// must neither panic nor wait. After the returned handle is dropped, `on_end` does not start, but
    /// may still run.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn watch(
        &self,
        socket: &Arc<TcpStream>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<WatchedSocket> {
        let has_ended = Arc::new(AtomicBool::new(false));
        let mut state = self.shared.0.lock();
        if state.wake.is_none() {
            state.wake = Some(self.start()?);
        }
        state.last_id += 1;
        let id = state.last_id;
        let entry = Entry {
            socket: Arc::clone(socket),
            has_ended: Arc::clone(&has_ended),
            on_end: Box::new(on_end),
        };
        state.sockets.insert(id, entry);
        state.wake();
        drop(state);
        Ok(WatchedSocket {
            id,
            has_ended,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Starts the thread, and returns the stream that wakes it.
    fn start(&self) -> io::Result<UnixStream> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(self.thread_name.to_owned());
        thread.spawn(move || shared.run(&woken))?;
        Ok(wake)
    }
}

impl Drop for SocketWatch {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock();
        state.is_over = true;
        state.wake();
    }
}

impl fmt::Debug for SocketWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = self.shared.0.lock().sockets.len();
        f.debug_struct("SocketWatch")
            .field("watched", &watched)
            .finish_non_exhaustive()
    }
}

impl WatchedSocket {
    /// Returns whether the thread saw that the peer closed the connection. It is true before `on_end` is
    /// called.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

impl Drop for WatchedSocket {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock();
        // The thread keeps the socket open until it is woken. So the descriptor is not reused while it
        // is polled. After the wake-up, the connection can close at once.
        let removed = state.sockets.remove(&self.id);
        if removed.is_some() {
            state.wake();
        }
        drop(state);
    }
}

impl fmt::Debug for WatchedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedSocket")
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Wakes the thread. If the byte does not fit, unread bytes wake the thread already.
    fn wake(&self) {
        if let Some(mut wake) = self.wake.as_ref() {
            let _ = wake.write(&[0]);
        }
    }
}

impl Shared {
    /// Polls the sockets until the set has ended.
    fn run(&self, woken: &UnixStream) {
        while let Some(watched) = self.watched() {
            let ended = wait(woken, &watched);
            drop(watched);
            for id in ended {
                let entry = self.0.lock().sockets.remove(&id);
                if let Some(entry) = entry {
                    entry.has_ended.store(true, Ordering::SeqCst);
                    (entry.on_end)();
                }
            }
        }
    }

    /// Returns the sockets of the set; `None` after its end.
    fn watched(&self) -> Option<Vec<(u64, Arc<TcpStream>)>> {
        let state = self.0.lock();
        let sockets = state.sockets.iter();
        let sockets = sockets.map(|(id, entry)| (*id, Arc::clone(&entry.socket)));
        (!state.is_over).then(|| sockets.collect())
    }
}

/// Returns the event that the peer sends nothing more, and `POLLHUP` on systems without it. poll(2) also reports,
/// unrequested, that both sides have closed (`POLLHUP`) and that the connection has failed (`POLLERR`). Data that arrives
/// does not wake the thread.
fn end_of_stream() -> PollFlags {
    PollFlags::from_name("RDHUP").unwrap_or(PollFlags::HUP)
}

/// Waits until connections have ended or the thread is woken. Returns the ids of the connections that have
/// ended.
fn wait(woken: &UnixStream, watched: &[(u64, Arc<TcpStream>)]) -> Vec<u64> {
    let event = end_of_stream();
    let sockets = watched.iter().map(|(_, socket)| PollFd::new(socket, event));
    let mut polled = vec![PollFd::new(woken, PollFlags::IN)];
    polled.extend(sockets);
    match poll(&mut polled, None) {
        Ok(_) => {}
        Err(Errno::INTR) => return Vec::new(),
        Err(_) => {
            // Without a wait, a poll that the system refuses would be repeated at once.
            thread::sleep(RETRY);
            return Vec::new();
        }
    }
    let mut reader = woken;
    while matches!(reader.read(&mut [0; 64]), Ok(1..)) {}
    let ended = watched.iter().zip(polled.iter().skip(1));
    ended
        .filter(|(_, polled)| !polled.revents().is_empty())
        .map(|((id, _), _)| *id)
        .collect()
}
