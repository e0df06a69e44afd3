//! The socket of one connection, with TLS where the URL asks for it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::{fd::AsFd, unix::net::UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
#[cfg(unix)]
use rustix::net::{RecvFlags, recv};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::options::{Place, RedisOptions};

/// Opens sockets to one server.
pub(crate) struct Dialer {
    place: Place,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Dialer {
    /// Reads the certificates, where TLS is wanted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for certificates that cannot be read, and for a host that no
    /// certificate can be about.
    pub(crate) fn new(options: &RedisOptions) -> Result<Self, Error> {
        let tls = match &options.place {
            Place::Tcp { host, .. } if options.tls => {
                let name = ServerName::try_from(host.clone()).map_err(|error| {
                    invalid(format!("{host:?} is no host's name or address")).with_source(error)
                })?;
                Some((tls_config(options.ca_file.as_deref())?, name))
            }
            _ => None,
        };
        Ok(Self {
            place: options.place.clone(),
            tls,
        })
    }

    /// Connects within `limit`. The TLS handshake takes place with the first request.
    pub(crate) fn dial(&self, limit: Duration) -> io::Result<Stream> {
        let (host, port) = match &self.place {
            Place::Tcp { host, port } => (host, *port),
            #[cfg(unix)]
            Place::Unix(path) => return UnixStream::connect(path).map(Stream::Unix),
            #[cfg(not(unix))]
            Place::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let socket = dial_tcp(host, port, limit)?;
        let Some((config, name)) = &self.tls else {
            return Ok(Stream::Tcp(socket));
        };
        let session = ClientConnection::new(Arc::clone(config), name.clone());
        let session = session.map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, socket))))
    }
}

/// Tries the host's addresses one after the other; each has its share of the time that is left.
fn dial_tcp(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let began = Instant::now();
    let mut addresses = (host, port).to_socket_addrs()?;
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(address) = addresses.next() {
        let untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let share = limit.saturating_sub(began.elapsed()) / untried.saturating_add(1);
        if share.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, share) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn tls_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let roots = match ca_file {
        Some(file) => roots_in(file)?,
        None => roots_of_the_system()?,
    };
    // The program may have chosen its cryptography already.
    let chosen = CryptoProvider::get_default().cloned();
    let crypto = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
    let config = config.map_err(|error| {
        invalid("this program's choice of cryptography for rustls does not do for TLS")
            .with_source(error)
    })?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}

fn roots_in(file: &Path) -> Result<RootCertStore, Error> {
    let pem = fs::read(file).map_err(|error| {
        invalid(format!("`ca_file` {} cannot be read", file.display())).with_source(error)
    })?;
    let mut roots = RootCertStore::empty();
    let unreadable = "`ca_file` has a certificate in it that cannot be read";
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| invalid(unreadable).with_source(error))?;
        let added = roots.add(certificate);
        added.map_err(|error| invalid(unreadable).with_source(error))?;
    }
    if roots.is_empty() {
        return Err(invalid(
            "`ca_file` has no certificate in it; it takes a PEM file",
        ));
    }
    Ok(roots)
}

fn roots_of_the_system() -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.into_iter().next() {
        return Err(invalid(format!(
            "the system's certificates cannot be read; SSL_CERT_FILE and SSL_CERT_DIR say where they are ({error})"
        ))
        .with_source(error));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    Ok(roots)
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidValue, text)
}

/// A socket to a server. Dropping it closes it.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Does the same with whichever socket it is.
macro_rules! on_socket {
    ($stream:expr, $socket:ident => $work:expr) => {
        match $stream {
            Stream::Tcp($socket) => $work,
            Stream::Tls(tls) => {
                let $socket = tls.get_ref();
                $work
            }
            #[cfg(unix)]
            Stream::Unix($socket) => $work,
        }
    };
}

/// Does the same with what the server's answers are read from and requests are written to.
macro_rules! on_transport {
    ($stream:expr, $transport:ident => $work:expr) => {
        match $stream {
            Stream::Tcp($transport) => $work,
            Stream::Tls($transport) => $work,
            #[cfg(unix)]
            Stream::Unix($transport) => $work,
        }
    };
}

impl Stream {
    /// Sets how long one read or one write may take.
    pub(crate) fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        on_socket!(self, socket => {
            socket.set_read_timeout(Some(limit))?;
            socket.set_write_timeout(Some(limit))
        })
    }

    /// Returns whether the connection is open and nothing waits to be read. Does not block.
    ///
    /// A server speaks only when it is asked. What waits on a connection of which nothing was asked
    /// is therefore the end of the stream, an error, or a farewell before the end (TLS's own alert).
    pub(crate) fn is_quiet(&self) -> bool {
        let peeked = on_socket!(self, socket => peek(socket));
        matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// One system call.
#[cfg(unix)]
fn peek(socket: impl AsFd) -> io::Result<usize> {
    let (_, length) = recv(socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(length)
}

#[cfg(not(unix))]
fn peek(socket: &TcpStream) -> io::Result<usize> {
    socket.set_nonblocking(true)?;
    let peeked = socket.peek(&mut [0]);
    socket.set_nonblocking(false)?;
    peeked
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        on_transport!(self, transport => transport.read(buffer))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        on_transport!(self, transport => transport.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        on_transport!(self, transport => transport.flush())
    }
}
