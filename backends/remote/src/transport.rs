//! Byte streams that the application connects.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

/// A stream that encrypts over a socket.
pub(crate) trait Layer: Read + Write + Send {}

impl<T: Read + Write + Send> Layer for T {}

/// A connected byte stream that the application supplies, on which nothing was sent yet. It is a socket, such as
/// that of a tunnel, and optionally a layer that encrypts over it. Dropping it closes the socket.
pub struct Transport {
    pub(crate) socket: TcpStream,
    pub(crate) layer: Option<Box<dyn Layer>>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Transport {
    /// A connected stream socket, such as a `TcpStream` or a `UnixStream`. Its time-outs are set for each request.
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self {
            // The calls are the same for each kind of socket.
            socket: socket.into().into(),
            layer: None,
        }
    }

    /// A stream that the application encrypts, and the socket below it: another descriptor of that, by `try_clone`. The
    /// stream returns the errors of the socket, such as its time-outs.
    pub fn encrypted(
        socket: impl Into<OwnedFd>,
        stream: impl Read + Write + Send + 'static,
    ) -> Self {
        Self {
            layer: Some(Box::new(stream)),
            ..Self::new(socket)
        }
    }
}
