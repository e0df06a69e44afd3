//! A second descriptor of a connection's socket. The mysql crate cannot change the socket's time-outs,
//! or close it while another thread waits on it.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant, Tick, Timer};
use lockkeeper_remote::{
    self as remote, Failure, Server, SocketTimeout, senseless, unavailable, without_signals,
};
use mysql::Conn;
use parking_lot::Mutex;

/// A connection of any kind: a [`Conn`] in a box, or one that a pool lends.
pub(crate) type AnyConn = Box<dyn DerefMut<Target = Conn> + Send>;

/// The socket of a connection, and the end of the call that is under way on it.
#[derive(Debug)]
pub(crate) struct Wire {
    /// A socket of any kind, since the calls are the same.
    socket: Arc<TcpStream>,
    /// When the call ends, in nanoseconds; [`NO_CALL`], or [`CUT`].
    end: AtomicU64,
}

const NO_CALL: u64 = u64::MAX;
/// The call was cut off at its end.
const CUT: u64 = u64::MAX - 1;

/// Cuts off calls that take too long. A socket's time-out does not bound them: the crate restarts it for each piece
/// of a reply, and the kernel ends a long time-out late.
pub(crate) struct CallLimits {
    clock: Arc<dyn Clock>,
    timer: Timer,
    wires: Mutex<Vec<Weak<Wire>>>,
}

impl CallLimits {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Result<Arc<Self>, Error> {
        let limits = Arc::new(Self {
            clock: Arc::clone(clock),
            timer: Timer::new(Arc::clone(clock)),
            wires: Mutex::default(),
        });
        let weak = Arc::downgrade(&limits);
        let poll = move |tick: Tick| Some(weak.upgrade()?.cut_overdue(tick.now));
        limits.timer.start("lockkeeper-mysql-limit", poll)?;
        Ok(limits)
    }

    /// Bounds the calls on a connection from now on.
    pub(crate) fn add(&self, wire: &Arc<Wire>) {
        self.wires.lock().push(Arc::downgrade(wire));
    }

    /// Makes a call of the mysql crate on a connection within `limit`. The crate panics on malformed packets.
    pub(crate) fn call<T>(
        &self,
        wire: &Wire,
        limit: Duration,
        server: &Server,
        call: impl FnOnce() -> mysql::Result<T>,
    ) -> Result<mysql::Result<T>, Failure> {
        let end = self.clock.now() + limit;
        wire.end.store(end.as_nanos(), Ordering::SeqCst);
        self.timer.note(end);
        let reply = catch_unwind(AssertUnwindSafe(|| without_signals(call)));
        if wire.end.swap(NO_CALL, Ordering::SeqCst) == CUT {
            return Err(Failure::Unanswered(server.silent()));
        }
        reply.map_err(|_| Failure::Unanswered(senseless()))
    }

    /// Cuts off the calls that have reached their end. Returns the next end.
    fn cut_overdue(&self, now: HostInstant) -> HostInstant {
        let mut next = HostInstant::NEVER;
        self.wires.lock().retain(|wire| {
            let Some(wire) = wire.upgrade() else {
                return false;
            };
            let end = HostInstant::from_nanos(wire.end.load(Ordering::SeqCst));
            let is_overdue = end <= now;
            // A call that returned just now has ended in time.
            if !is_overdue || !wire.cut(end) {
                next = next.min(end);
            }
            true
        });
        next
    }
}

impl Wire {
    /// Ends the call with this end, unless it has returned. The server is not notified: the watch of the socket
    /// ends the session first. A call on a session with other leases may take as long as these last, so none of
    /// them is valid then.
    fn cut(&self, end: HostInstant) -> bool {
        let (end, order) = (end.as_nanos(), Ordering::SeqCst);
        let is_cut = self.end.compare_exchange(end, CUT, order, order).is_ok();
        if is_cut {
            let _ = self.socket.shutdown(Shutdown::Read);
        }
        is_cut
    }

    pub(crate) fn of(conn: &Conn) -> Result<Self, Error> {
        use std::os::fd::{AsRawFd, BorrowedFd};

        #[expect(
            unsafe_code,
            reason = "the crate has AsRawFd only; the descriptor is open for as long as `conn` is borrowed"
        )]
        let socket = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) }.try_clone_to_owned();
        let refused = |error| {
            let text =
                "the connection's socket cannot be had twice; is the limit of open files reached?";
            unavailable(text).with_source(error)
        };
        Ok(Self {
            socket: Arc::new(socket.map_err(refused)?.into()),
            end: AtomicU64::new(NO_CALL),
        })
    }

    pub(crate) fn set_timeout(
        &self,
        timeout: &mut SocketTimeout,
        limit: Duration,
    ) -> io::Result<()> {
        timeout.set(&self.socket, limit)
    }

    /// Returns the time-outs of reading and of writing.
    pub(crate) fn timeouts(&self) -> io::Result<[Option<Duration>; 2]> {
        Ok([self.socket.read_timeout()?, self.socket.write_timeout()?])
    }

    /// Sets again what [`timeouts`](Self::timeouts) returned.
    pub(crate) fn restore_timeouts(&self, [read, write]: [Option<Duration>; 2]) -> io::Result<()> {
        self.socket.set_read_timeout(read)?;
        self.socket.set_write_timeout(write)
    }

    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Returns whether the server has closed the connection. Reads what the server sent last, so the
    /// connection cannot be used afterwards.
    pub(crate) fn has_ended(&self) -> bool {
        let mut socket = &*self.socket;
        let mut last = [0; 512];
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .is_ok()
            && loop {
                match socket.read(&mut last) {
                    Ok(0) => break true,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break error.kind() == io::ErrorKind::ConnectionReset,
                }
            }
    }

    /// Returns whether an idle connection can take a request.
    pub(crate) fn is_quiet(&self) -> bool {
        remote::is_quiet(&self.socket)
    }

    /// Closes the connection for the server and for a thread that waits on it.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
