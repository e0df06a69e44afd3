//! The socket of one connection, with TLS if it is asked for.

use std::io::{self, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::{fd::OwnedFd, unix::net::UnixStream};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Error;
#[cfg(unix)]
use rustix::net::{RecvFlags, recv};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::connect::connect_tcp;
use crate::failure::Server;
use crate::options::{Endpoint, RemoteOptions};
use crate::tls::{client_config, invalid};

/// Opens sockets to one server.
pub struct Dialer {
    endpoint: Endpoint,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Dialer {
    /// Reads the certificates, if the options ask for TLS.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`](lockkeeper_core::ErrorKind::InvalidValue) for certificates that
    /// cannot be read, and for a host that no certificate can be about.
    pub fn new(options: &RemoteOptions) -> Result<Self, Error> {
        let tls = match &options.endpoint {
            Endpoint::Tcp { host, .. } if options.tls => {
                let name = ServerName::try_from(host.clone()).map_err(|error| {
                    invalid(format!("{host:?} is no host's name or address")).with_source(error)
                })?;
                Some((client_config(options.ca_file.as_deref())?, name))
            }
            _ => None,
        };
        Ok(Self {
            endpoint: options.endpoint.clone(),
            tls,
        })
    }

    /// Connects within `limit`. The TLS handshake takes place with the first request. A Unix socket
    /// takes no time-out: connecting blocks while the server is stopped and its backlog is full.
    ///
    /// # Errors
    /// [`Server::not_connected`].
    pub fn dial(&self, server: &Server, limit: Duration) -> Result<Stream, Error> {
        let opened = match &self.endpoint {
            Endpoint::Tcp { host, port } => {
                let socket = connect_tcp(server, (host, *port), limit)?;
                let Some((config, name)) = &self.tls else {
                    return Ok(Stream::Plain(socket));
                };
                ClientConnection::new(Arc::clone(config), name.clone())
                    .map(|session| Stream::Tls(Box::new(StreamOwned::new(session, socket))))
                    .map_err(io::Error::other)
            }
            // A socket's calls are the same, whatever its kind.
            #[cfg(unix)]
            Endpoint::Unix(path) => UnixStream::connect(path)
                .map(|socket| Stream::Plain(TcpStream::from(OwnedFd::from(socket)))),
            #[cfg(not(unix))]
            Endpoint::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        opened.map_err(|error| server.not_connected(error))
    }
}

/// A connection to a server. Dropping it closes it.
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.get_ref(),
        }
    }

    /// Sets the longest time that one read or one write may take.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        set_timeout(self.socket(), limit)
    }

    /// Returns whether the connection can take a request: see [`is_quiet`].
    pub fn is_quiet(&self) -> bool {
        is_quiet(self.socket())
    }
}

/// Sets the longest time that one read or one write may take.
///
/// # Errors
/// Those of the socket.
pub fn set_timeout(socket: &TcpStream, limit: Duration) -> io::Result<()> {
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))
}

/// Returns whether a connection is open and nothing waits to be read. Does not block.
///
/// A server speaks only when it is asked. What waits on a connection of which nothing was asked is
/// therefore the end of the stream, an error, or a farewell before the end, such as TLS's own alert.
#[cfg(unix)]
pub fn is_quiet(socket: &TcpStream) -> bool {
    let peeked = recv(socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(peeked, Err(rustix::io::Errno::AGAIN))
}

/// Returns the same where a socket has to be switched.
#[cfg(not(unix))]
pub fn is_quiet(socket: &TcpStream) -> bool {
    let peek = || -> io::Result<usize> {
        socket.set_nonblocking(true)?;
        let peeked = socket.peek(&mut [0]);
        socket.set_nonblocking(false)?;
        peeked
    };
    matches!(peek(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}
