//! Stands in for `socket_watch` outside of Unix: nothing is noticed before the next use.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

/// A set of sockets whose end would be noticed at once.
#[derive(Debug)]
pub struct SocketWatch;

/// A socket of a [`SocketWatch`].
#[derive(Debug)]
pub struct WatchedSocket;

impl SocketWatch {
    /// A set without sockets.
    pub fn new(_: &'static str) -> Self {
        Self
    }

    /// Does nothing.
    ///
    /// # Errors
    /// None.
    pub fn watch(
        &self,
        _: &Arc<TcpStream>,
        _: impl FnOnce() + Send + 'static,
    ) -> io::Result<WatchedSocket> {
        Ok(WatchedSocket)
    }
}

impl WatchedSocket {
    /// Returns false.
    pub fn has_ended(&self) -> bool {
        false
    }
}
