//! The state that the threads of the proxy share: faults, connections and counts.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Counts, Fault};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Notified of every change of `state`.
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) target: SocketAddr,
    pub(super) fault: Fault,
    /// Faults for single requests, in the order of the calls of `once`.
    pub(super) once: Vec<(Vec<u8>, Fault)>,
    /// Counts decisions: a new one restarts the bytes of a cut, and a `set` overrules earlier ones of `once`.
    pub(super) decision: u64,
    pub(super) set_at: u64,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) counts: Counts,
    pub(super) refusing: bool,
    /// Whether the port is open; the acceptor sets it after a change of `refusing`.
    pub(super) listening: bool,
    /// Why the port could not be opened again.
    pub(super) broken: Option<io::ErrorKind>,
    pub(super) closing: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: Vec<TcpStream>,
    /// The fault of the last request, which its replies share.
    pub(super) armed: Option<(u64, Fault)>,
    /// A part of the replies to the last request was dropped.
    pub(super) has_gap: bool,
    /// The client has closed its end.
    pub(super) is_left: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Request,
    Reply,
}

impl State {
    pub(super) fn cut_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.cut(id);
        }
    }

    pub(super) fn cut(&mut self, id: u64) {
        self.counts.cut += u64::from(self.close(id));
    }

    /// Returns the fault of a connection, with the number of its decision, and `None` after the connection was cut.
    fn fault_of(&self, id: u64) -> Option<(u64, Fault)> {
        let armed = self.connections.get(&id)?.armed;
        let armed = armed.filter(|(decision, _)| *decision > self.set_at);
        Some(armed.unwrap_or((self.set_at, self.fault)))
    }

    fn is_current(&self, id: u64, decision: u64) -> bool {
        matches!(self.fault_of(id), Some((current, _)) if current == decision)
    }

    /// Closes both ends. Returns false if they were closed before.
    pub(super) fn close(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.remove(&id) else {
            return false;
        };
        for end in &connection.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        self.count_open();
        true
    }

    /// Notes that the client has closed its end.
    ///
    /// The server may see that only after its reply, which takes Consul a minute while a request waits for a change.
    pub(super) fn leave(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_left = true;
        }
        self.count_open();
    }

    pub(super) fn count_open(&mut self) {
        let open = self.connections.values().filter(|it| !it.is_left);
        self.counts.open = open.count() as u64;
    }
}

impl Shared {
    /// Makes the state of a proxy that passes everything.
    pub(super) fn new(target: SocketAddr) -> Self {
        Self {
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
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(
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

    /// Returns the fault for this chunk (empty: the end). Waits while the fault is `Dark`. Returns `None`
    /// after the connection was cut.
    pub(super) fn judge(&self, id: u64, way: Way, chunk: &[u8]) -> Option<(u64, Fault)> {
        let mut state = self.lock();
        while way == Way::Request && matches!(state.fault_of(id), Some((_, Fault::HalfOpen))) {
            state = self.wait(state, None);
        }
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
                    let connection = state.connections.get_mut(&id)?;
                    let is_cut = |armed: &(u64, Fault)| matches!(armed.1, Fault::CutReplyAfter(_));
                    connection.armed = armed.or(connection.armed.filter(is_cut));
                    connection.has_gap = false;
                }
                Way::Reply => state.counts.replies += 1,
            }
            self.changed.notify_all();
        }
        let mut waited = false;
        loop {
            let (decision, fault) = state.fault_of(id)?;
            if way == Way::Reply && !chunk.is_empty() && fault != Fault::Dark {
                let connection = state.connections.get_mut(&id)?;
                if fault == Fault::DropReplies {
                    connection.has_gap = true;
                } else if connection.has_gap {
                    state.cut(id);
                    self.changed.notify_all();
                    return None;
                }
            }
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

    /// Waits for a delay. Returns false if the connection was cut meanwhile.
    pub(super) fn hold(&self, id: u64, delay: Duration) -> bool {
        let until = Instant::now() + delay;
        let mut state = self.lock();
        state.counts.held += 1;
        self.changed.notify_all();
        while Instant::now() < until && state.connections.contains_key(&id) {
            state = self.wait(state, Some(until));
        }
        state.connections.contains_key(&id)
    }

    /// Returns whether the fault of a decision is not over, and the connection not cut.
    pub(super) fn is_current(&self, id: u64, decision: u64) -> bool {
        self.lock().is_current(id, decision)
    }

    /// Waits until the fault of a decision is over or the connection is cut, at most until `until`.
    pub(super) fn wait_while_current(&self, id: u64, decision: u64, until: Option<Instant>) {
        let mut state = self.lock();
        while state.is_current(id, decision) && until.is_none_or(|until| Instant::now() < until) {
            state = self.wait(state, until);
        }
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
        self.changed.notify_all();
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty()
        || haystack
            .windows(needle.len())
            .any(|window| window == needle)
}
