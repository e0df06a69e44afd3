//! A second descriptor of a connection's socket: the mysql crate offers no way to change its time-outs,
//! or to close it while another thread waits on it.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_remote::{self as remote, SocketTimeout, SocketWatch, WatchedSocket};
use mysql::Conn;

/// A socket of any kind: the calls are the same. `None` outside of Unix, where the mysql crate does not
/// show its socket: there the time-outs of opening stay.
#[derive(Debug, Default)]
pub(crate) struct Wire(Option<Arc<TcpStream>>);

/// The longest time that one call may wait in the server. Without the socket, a wait is several short
/// calls, so that a cancel is noticed and no time-out is reached.
pub(crate) const LONGEST_CALL: Duration = if cfg!(unix) {
    Duration::MAX
} else {
    Duration::from_millis(250)
};

impl Wire {
    #[cfg(unix)]
    pub(crate) fn of(conn: &Conn) -> io::Result<Self> {
        use std::os::fd::{AsRawFd, BorrowedFd};

        #[expect(
            unsafe_code,
            reason = "the crate has AsRawFd only; the descriptor is open for as long as `conn` is borrowed"
        )]
        let socket = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) };
        Ok(Self(Some(Arc::new(socket.try_clone_to_owned()?.into()))))
    }

    #[cfg(not(unix))]
    pub(crate) fn of(_: &Conn) -> io::Result<Self> {
        Ok(Self(None))
    }

    pub(crate) fn set_timeout(
        &self,
        timeout: &mut SocketTimeout,
        limit: Duration,
    ) -> io::Result<()> {
        let socket = self.0.as_ref();
        socket.map_or(Ok(()), |socket| timeout.set(socket, limit))
    }

    /// Returns the time-outs of reading and of writing.
    pub(crate) fn timeouts(&self) -> io::Result<[Option<Duration>; 2]> {
        let socket = self.0.as_ref();
        socket.map_or(Ok([None; 2]), |socket| {
            Ok([socket.read_timeout()?, socket.write_timeout()?])
        })
    }

    /// Sets again what [`timeouts`](Self::timeouts) returned.
    pub(crate) fn restore_timeouts(&self, [read, write]: [Option<Duration>; 2]) -> io::Result<()> {
        let socket = self.0.as_ref();
        socket.map_or(Ok(()), |socket| {
            socket.set_read_timeout(read)?;
            socket.set_write_timeout(write)
        })
    }

    /// Has `on_end` called when the server closes the connection: see [`SocketWatch::watch`].
    pub(crate) fn watch(
        &self,
        watch: &SocketWatch,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Option<WatchedSocket>> {
        let socket = self.0.as_ref();
        socket.map(|socket| watch.watch(socket, on_end)).transpose()
    }

    /// Returns whether the server has closed the connection. Reads what the server sent last, so the
    /// connection cannot be used afterwards.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(mut socket) = self.0.as_deref() else {
            // No other packet than the server's farewell is known to come unasked.
            return true;
        };
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
        self.0.as_deref().is_none_or(remote::is_quiet)
    }

    /// Closes the connection for the server and for a thread that waits on it.
    pub(crate) fn close(&self) {
        if let Some(socket) = &self.0 {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
