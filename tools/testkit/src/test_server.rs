//! The interface to a server under test, for all kinds of stores.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::daemon::Daemon;
use crate::until::wait_until;

/// Ends a fault that [`TestServer::cut_off`] or [`TestServer::slow_down`] has begun.
pub type EndFault = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// The facts in which the kinds of stores differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether a lease ends with the connection on which it was granted.
    pub ends_with_connection: bool,
    /// Whether the store still has its leases after [`TestServer::restart`].
    pub is_kept_by_restart: bool,
    /// Whether a holder is notified at once when the store was wiped.
    pub tells_of_wipe: bool,
    /// Whether a holder is notified at once when its lease was ended.
    pub tells_of_end: bool,
    /// Whether a holder is notified at once when an operator took its lock away.
    pub tells_of_unlock: bool,
    /// The shortest ttl, in seconds.
    pub min_ttl: u64,
    /// Bytes that every request about the lock `a` in the namespace `default` contains.
    pub lock_request: &'static str,
    /// A number of bytes that is smaller than every reply.
    pub part_of_reply: usize,
    /// Whether the store takes `pool_size`.
    pub has_pool: bool,
    /// A number that is larger than the connections that one thread opens when it finds an outage.
    pub outage_connections: u64,
}

impl Facts {
    /// The facts of a store whose leases are rows or keys with a time to live, and are lost by a restart.
    pub(crate) const ROWS: Self = Self {
        ends_with_connection: false,
        is_kept_by_restart: false,
        tells_of_wipe: true,
        tells_of_end: false,
        tells_of_unlock: true,
        min_ttl: 1,
        lock_request: "",
        part_of_reply: 2,
        has_pool: true,
        // A thread replaces a pooled connection, and opens a new one.
        outage_connections: 3,
    };

    /// The facts of a store whose leases are sessions.
    pub(crate) const SESSIONS: Self = Self {
        ends_with_connection: true,
        tells_of_end: true,
        lock_request: "default:a",
        part_of_reply: 7,
        ..Self::ROWS
    };
}

/// A store that a test starts and can break. All methods can be called from any thread.
///
/// The methods break the store without telling its keepers. If a store cannot do something, the method returns an
/// error of the kind [`io::ErrorKind::Unsupported`].
pub trait TestServer: Any + Send + Sync {
    /// Returns the facts of this store.
    fn facts(&self) -> Facts;

    /// Returns the store's URL, ready for `key=value`.
    fn url(&self) -> String {
        let addr = self.single_addr();
        addr.map_or_else(String::new, |addr| self.url_via(addr))
    }

    /// Returns the URL of a store of this kind at another host and port, ready for `key=value`, with TLS or without.
    fn url_at(&self, host: &str, tls: bool) -> String {
        let _ = (host, tls);
        self.url()
    }

    /// Returns the store's URL through a proxy at `addr`, ready for `key=value`.
    fn url_via(&self, addr: SocketAddr) -> String {
        self.url_at(&addr.to_string(), false)
    }

    /// Returns the URL of the store's Unix socket, ready for `key=value`, if it has one.
    fn socket_url(&self) -> Option<String> {
        None
    }

    /// Returns the address to which a proxy connects, if the store is a single server.
    fn single_addr(&self) -> Option<SocketAddr> {
        match self.processes()[..] {
            [server] => Some(server.addr()),
            _ => None,
        }
    }

    /// Returns the processes of the store.
    fn processes(&self) -> Vec<&Daemon> {
        Vec::new()
    }

    /// Stops all processes. Connections stay open without replies.
    ///
    /// # Errors
    /// A process does not run, or the store has none.
    fn stop(&self) -> io::Result<()> {
        on_each(self.processes(), Daemon::stop)
    }

    /// Continues all processes after [`stop`](Self::stop).
    ///
    /// # Errors
    /// A process does not run, or the store has none.
    fn resume(&self) -> io::Result<()> {
        on_each(self.processes(), Daemon::cont)
    }

    /// Kills all processes.
    fn kill(&self) {
        self.processes().into_iter().for_each(Daemon::kill);
    }

    /// Kills the processes that run, and starts all on their former ports.
    ///
    /// # Errors
    /// A process did not start, or the store has none.
    fn restart(&self) -> io::Result<()> {
        on_each(self.processes(), Daemon::restart)
    }

    /// Makes the store forget all leases and epochs: by a restart, if they are no data.
    ///
    /// # Errors
    /// The store does not reply.
    fn wipe(&self) -> io::Result<()> {
        self.restart()
    }

    /// Makes the store like new for the next test.
    ///
    /// # Errors
    /// The store does not reply, or it still contains something of the last test.
    fn reset(&self) -> io::Result<()> {
        self.wipe()
    }

    /// Makes the store unreachable until the returned function is called. The store keeps its leases.
    ///
    /// # Errors
    /// The store does not reply.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        self.stop()?;
        Ok(Box::new(move || self.resume()))
    }

    /// Delays every request by about `by`, until the returned function is called.
    ///
    /// # Errors
    /// A process does not run, or the store has none.
    fn slow_down(self: Arc<Self>, by: Duration) -> io::Result<EndFault> {
        let stop = Arc::clone(&self);
        repeat(by, by / 4, move || stop.stop(), move || self.resume())
    }

    /// Ends the lease on a name, and wakes no waiter. Where a lease is a session's, this kills the session, as an operator
    /// does, and waits for its end.
    ///
    /// # Errors
    /// The name is not held, or the store does not reply.
    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        let holders = self.holding_sessions(namespace, &[name])?;
        let holder = holders.first().ok_or_else(|| not_held(name))?;
        self.kill_session(*holder)?;
        wait_until(|| {
            let holders = self.holding_sessions(namespace, &[name])?;
            Ok(!holders.contains(holder))
        })
    }

    /// Returns how many callers wait for a name in the store.
    ///
    /// # Errors
    /// The store does not reply.
    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.waiting_sessions(namespace, name)?.len())
    }

    /// Returns the keys, rows or sessions of locks and waiters in the store.
    ///
    /// # Errors
    /// The store does not reply.
    fn leftovers(&self) -> io::Result<Vec<String>>;

    /// Returns the connections of keepers, where the store lists them.
    ///
    /// # Errors
    /// The store does not reply.
    fn connections(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Returns the sessions that hold any of the names, on a store whose leases belong to sessions.
    ///
    /// # Errors
    /// The store does not reply.
    fn holding_sessions(&self, namespace: &str, names: &[&str]) -> io::Result<BTreeSet<u64>> {
        let _ = (namespace, names);
        unsupported()
    }

    /// Returns the sessions that wait for a name.
    ///
    /// # Errors
    /// The store does not reply.
    fn waiting_sessions(&self, namespace: &str, name: &str) -> io::Result<BTreeSet<u64>> {
        let _ = (namespace, name);
        unsupported()
    }

    /// Kills a session. It may end a moment later.
    ///
    /// # Errors
    /// The store does not reply.
    fn kill_session(&self, session: u64) -> io::Result<()> {
        let _ = session;
        unsupported()
    }

    /// Cancels the statement that a session runs.
    ///
    /// # Errors
    /// The store does not reply.
    fn cancel_statement(&self, session: u64) -> io::Result<()> {
        let _ = session;
        unsupported()
    }
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the error of a name that is not held.
pub(crate) fn not_held(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name:?} is not held"))
}

fn on_each(processes: Vec<&Daemon>, act: impl Fn(&Daemon) -> io::Result<()>) -> io::Result<()> {
    if processes.is_empty() {
        return unsupported();
    }
    processes.into_iter().try_for_each(act)
}

/// Begins and ends a fault repeatedly on a thread. Between two faults, the store replies.
pub(crate) fn repeat(
    length: Duration,
    pause: Duration,
    begin: impl Fn() -> io::Result<()> + Send + 'static,
    end: impl Fn() -> io::Result<()> + Send + 'static,
) -> io::Result<EndFault> {
    let (over, is_over) = mpsc::channel::<()>();
    let repeating = thread::Builder::new().spawn(move || {
        while is_over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            begin()?;
            let _ = is_over.recv_timeout(length);
            end()?;
        }
        Ok(())
    })?;
    Ok(Box::new(move || {
        drop(over);
        let panicked = |_| Err(io::Error::other("a thread has panicked"));
        repeating.join().unwrap_or_else(panicked)
    }))
}
