//! A second hand on a connection's socket: the mysql crate gives no way to change its timeouts, or
//! to end it while another thread waits on it.

use std::io;
use std::time::Duration;

use mysql::Conn;

#[cfg(unix)]
mod platform {
    use super::{Conn, Duration, io};
    use std::io::Read;
    use std::net::{Shutdown, TcpStream};
    use std::os::fd::{AsRawFd, BorrowedFd};

    /// Whatever kind of socket it is: the calls are the same for all of them.
    #[derive(Debug)]
    pub(crate) struct Wire(TcpStream);

    impl Wire {
        pub(crate) fn of(conn: &Conn) -> io::Result<Self> {
            #[expect(
                unsafe_code,
                reason = "the crate has AsRawFd only; the descriptor is open for as long as `conn` is borrowed"
            )]
            let socket = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) };
            Ok(Self(socket.try_clone_to_owned()?.into()))
        }

        pub(crate) fn set_timeout(&self, limit: Duration) -> io::Result<()> {
            lockkeeper_remote::set_timeout(&self.0, limit)
        }

        /// Whether the server has closed it, behind what it may have said last. Reads that: the
        /// connection is of no use any more.
        pub(crate) fn has_ended(&self) -> bool {
            let mut last = [0; 512];
            let mut socket = &self.0;
            let is_set = self.set_timeout(Duration::from_millis(1)).is_ok();
            is_set
                && loop {
                    match socket.read(&mut last) {
                        Ok(0) => break true,
                        Ok(_) => {}
                        Err(error) => break error.kind() == io::ErrorKind::ConnectionReset,
                    }
                }
        }

        /// Returns whether an idle connection can take a request.
        pub(crate) fn is_quiet(&self) -> bool {
            lockkeeper_remote::is_quiet(&self.0)
        }

        /// Who waits on it is told that it is closed, and so is the server.
        pub(crate) fn close(&self) {
            let _ = self.0.shutdown(Shutdown::Both);
        }
    }

    /// No wait has to be cut into pieces.
    pub(crate) const LONGEST_CALL: Duration = Duration::MAX;
}

#[cfg(not(unix))]
mod platform {
    use super::{Conn, Duration, io};

    #[derive(Debug)]
    pub(crate) struct Wire;

    impl Wire {
        pub(crate) fn of(_: &Conn) -> io::Result<Self> {
            Ok(Self)
        }

        /// The timeouts stay as they were when it was opened.
        pub(crate) fn set_timeout(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }

        /// It cannot be looked at; nothing else is known to come out of turn.
        pub(crate) fn has_ended(&self) -> bool {
            true
        }

        pub(crate) fn is_quiet(&self) -> bool {
            true
        }

        pub(crate) fn close(&self) {}
    }

    /// A wait is a row of short ones, so that a cancel is noticed and no timeout is met.
    pub(crate) const LONGEST_CALL: Duration = Duration::from_millis(250);
}

pub(crate) use platform::{LONGEST_CALL, Wire};
