//! A second descriptor of a connection's socket: the mysql crate offers no way to change its time-outs,
//! or to close it while another thread waits on it.

use std::io;
use std::time::Duration;

use mysql::Conn;

#[cfg(unix)]
mod platform {
    use super::{Conn, Duration, io};
    use std::io::Read;
    use std::net::{Shutdown, TcpStream};
    use std::os::fd::{AsRawFd, BorrowedFd};

    /// A socket of any kind: the calls are the same.
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

        /// Returns whether the server has closed the connection. Reads what the server sent last, so the
        /// connection cannot be used afterwards.
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

        /// Closes the connection for the server and for a thread that waits on it.
        pub(crate) fn close(&self) {
            let _ = self.0.shutdown(Shutdown::Both);
        }
    }

    /// A wait is one call.
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

        /// Does nothing: the time-outs of opening stay.
        pub(crate) fn set_timeout(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }

        /// Returns true: the socket cannot be read, and no other packet is known to come out of turn.
        pub(crate) fn has_ended(&self) -> bool {
            true
        }

        pub(crate) fn is_quiet(&self) -> bool {
            true
        }

        pub(crate) fn close(&self) {}
    }

    /// A wait is several short calls, so that a cancel is noticed and no time-out is reached.
    pub(crate) const LONGEST_CALL: Duration = Duration::from_millis(250);
}

pub(crate) use platform::{LONGEST_CALL, Wire};
