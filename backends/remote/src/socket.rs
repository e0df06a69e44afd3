//! The socket of one connection, with TLS if it is asked for.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Error;
#[cfg(target_os = "linux")]
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::connect::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, connect_any};
use crate::exchange::{Exchange, Wire};
use crate::failure::Server;
use crate::options::{Endpoint, RemoteOptions, invalid};
use crate::signals::without_signals;
use crate::supplier::Supplier;
use crate::tls::{TlsClient, TlsSession};
use crate::transport::{Layer, Transport};

/// Opens sockets to one server.
pub struct Dialer {
    endpoint: Endpoint,
    tls: Option<TlsClient>,
    supplier: Option<Supplier<Transport>>,
}

impl Dialer {
    /// Reads the certificates, if the options ask for TLS.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`](lockkeeper_core::ErrorKind::InvalidValue) for certificates that
    /// cannot be read, and for a host that no certificate can be about;
    /// [`ErrorKind::Unsupported`](lockkeeper_core::ErrorKind::Unsupported) for TLS without the feature `tls`.
    pub fn new(options: &RemoteOptions) -> Result<Self, Error> {
        let tls = match &options.endpoint {
            Endpoint::Tcp { host, .. } if options.tls => Some(TlsClient::new(host, options)?),
            _ => None,
        };
        Ok(Self {
            endpoint: options.endpoint.clone(),
            tls,
            supplier: None,
        })
    }

    /// Sets the application's function that connects, if there is one.
    #[must_use]
    pub fn with_supplier(mut self, supplier: Option<Supplier<Transport>>) -> Self {
        self.supplier = supplier;
        self
    }

    /// Connects within `limit`. The TLS handshake takes place with the first request. Until the stream begins
    /// [an exchange](Stream::begin), what is left of `limit` is the time for that, too.
    ///
    /// # Errors
    /// [`Server::not_connected`].
    pub fn dial(&self, server: &Server, limit: Duration) -> Result<Stream, Error> {
        let failed = |error| server.not_connected(error);
        let exchange = Exchange::new(limit);
        let supplied = self.supplier.as_ref().map(|it| it.take(limit));
        let (socket, layer) = match supplied.transpose()? {
            Some(Transport { socket, layer }) => {
                // A socket that came from tokio is non-blocking.
                socket.set_nonblocking(false).map_err(failed)?;
                (socket, layer)
            }
            None => (self.connect(server, limit)?, None),
        };
        let top = match (layer, &self.tls) {
            (None, None) => Top::Plain,
            (None, Some(tls)) => Top::Tls(tls.session().map_err(failed)?),
            (Some(layer), None) => Top::Layer(layer),
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "the application's stream is encrypted, and the options ask for TLS over it; leave TLS out",
                ));
            }
        };
        let socket = Arc::new(socket);
        Ok(Stream {
            socket,
            top,
            exchange,
        })
    }

    fn connect(&self, server: &Server, limit: Duration) -> Result<TcpStream, Error> {
        let failed = |error| server.not_connected(error);
        match &self.endpoint {
            Endpoint::Tcp { host, port } => {
                connect_any(server, (host.as_str(), *port), limit, |address, share| {
                    let connected = TcpStream::connect_timeout(&address, share);
                    connected.and_then(prepare).map_err(failed)
                })
            }
            Endpoint::Unix(path) => connect_unix(path, limit).map_err(failed),
        }
    }
}

/// Connects to a Unix socket. While the backlog of a stopped server is full, the system waits for as long as a write may
/// take. Sockets of both kinds have the same system calls.
#[cfg(target_os = "linux")]
fn connect_unix(path: &Path, limit: Duration) -> io::Result<TcpStream> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    let socket = TcpStream::from(socket);
    // Zero is refused.
    socket.set_write_timeout(Some(limit.max(Duration::from_millis(1))))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    socket.set_write_timeout(None)?;
    Ok(socket)
}

/// Connects to a Unix socket. This system has no limit of time for it.
#[cfg(not(target_os = "linux"))]
fn connect_unix(path: &Path, _limit: Duration) -> io::Result<TcpStream> {
    use std::os::{fd::OwnedFd, unix::net::UnixStream};
    let socket = UnixStream::connect(path)?;
    Ok(TcpStream::from(OwnedFd::from(socket)))
}

/// Makes a socket send without delay, and notice a dead network.
fn prepare(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
    }
    Ok(socket)
}

/// A connection to a server. Dropping it closes it.
///
/// A backend calls [`begin`](Self::begin) before each request, then writes the request and reads the whole reply.
/// All system calls in between share one deadline, also those that TLS makes. A call after the deadline fails as a
/// time-out: see [`is_timeout`](crate::is_timeout). More than [`MAX_REPLY`](crate::MAX_REPLY) bytes in one exchange
/// are an error, too: see [`is_too_long`](crate::is_too_long). After either error, close the connection.
///
/// ```no_run
/// # use std::io::{self, Read, Write};
/// # use std::time::Duration;
/// # fn ask(stream: &mut lockkeeper_remote::Stream) -> io::Result<[u8; 4]> {
/// stream.begin(Duration::from_secs(2));
/// stream.write_all(b"PING")?;
/// let mut reply = [0; 4];
/// stream.read_exact(&mut reply)?;
/// # Ok(reply)
/// # }
/// ```
///
/// A connection on which the server sends messages by itself calls [`begin`](Self::begin) for each message, and
/// [`extend`](Self::extend) to wait longer for it; or [`begin_without_limit`](Self::begin_without_limit).
pub struct Stream {
    socket: Arc<TcpStream>,
    top: Top,
    exchange: Exchange,
}

fn write_whole(mut stream: impl Write, message: &[u8]) -> io::Result<()> {
    stream.write_all(message)?;
    stream.flush()
}

/// A socket that takes what it can at once.
struct AtOnce<'a> {
    socket: &'a TcpStream,
    written: usize,
}

impl Read for AtOnce<'_> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A closed connection is an error, and no signal.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let count = send(self.socket, bytes, flags)?;
        self.written += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The encryption over the socket.
enum Top {
    Plain,
    Tls(TlsSession),
    /// The application's own encryption.
    Layer(Box<dyn Layer>),
}

impl Stream {
    /// Returns the socket, for [`is_quiet`] and [`SocketWatch`](crate::SocketWatch).
    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Begins an exchange that ends after `limit`, or after [`MAX_REPLY`](crate::MAX_REPLY) bytes from the server.
    pub fn begin(&mut self, limit: Duration) {
        self.exchange.begin(Some(limit));
    }

    /// Begins an exchange in which the server's next message may come at any time.
    pub fn begin_without_limit(&mut self) {
        self.exchange.begin(None);
    }

    /// Sets the limit of the exchange to `limit` from now. The bytes that came before still count. It is for a
    /// message whose rest may come late.
    pub fn extend(&mut self, limit: Duration) {
        self.exchange.extend(Some(limit));
    }

    /// Writes all of a message without waiting for the peer to take it, and returns whether it did. What the application
    /// encrypts is never written so.
    ///
    /// # Errors
    /// Those of the socket, which may have taken a part of the message: the connection must be closed.
    pub fn write_at_once(&mut self, message: &[u8]) -> io::Result<bool> {
        let mut socket = AtOnce {
            socket: &self.socket,
            written: 0,
        };
        let written = match &mut self.top {
            Top::Plain => write_whole(&mut socket, message),
            Top::Tls(tls) if !tls.is_handshaking() => write_whole(tls.over(&mut socket), message),
            Top::Tls(_) | Top::Layer(_) => return Ok(false),
        };
        match written {
            Ok(()) => Ok(true),
            // Encrypted, a message that was begun cannot be taken back.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    && socket.written == 0
                    && matches!(self.top, Top::Plain) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the stream below the encryption, for a protocol that negotiates TLS before it starts TLS.
    pub fn below_tls(&mut self) -> impl Read + Write {
        self.split().0
    }

    fn split(&mut self) -> (Wire<'_>, &mut Top) {
        let wire = Wire {
            socket: &self.socket,
            exchange: &mut self.exchange,
        };
        (wire, &mut self.top)
    }

    /// Returns whether a TLS handshake is under way. Until its end, nothing else is sent.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(&self.top, Top::Tls(session) if session.is_handshaking())
    }
}

/// Sets the longest time that one read or one write may take.
pub(crate) fn set_timeout(socket: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    socket.set_read_timeout(limit)?;
    socket.set_write_timeout(limit)
}

/// How much longer than the time that is left a socket's time-out may be.
const SLACK: Duration = Duration::from_millis(10);

/// The time-out of reads and writes that was last set on a socket.
#[derive(Debug, Default)]
pub struct SocketTimeout(Option<Duration>);

impl SocketTimeout {
    /// Sets the time-out on the socket, rounded up to whole milliseconds, at least 1. A former time-out stays if it
    /// is longer by at most 10 ms. That saves most requests the two system calls: they have the same response
    /// time-out, and their replies come soon.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn set(&mut self, socket: &TcpStream, limit: Duration) -> io::Result<()> {
        self.set_by(limit, |limit| set_timeout(socket, Some(limit)))
    }

    /// Returns whether the time that was set last is in this range.
    pub(crate) fn is_within(&self, shortest: Duration, longest: Duration) -> bool {
        self.0.is_some_and(|it| shortest <= it && it <= longest)
    }

    /// Sets the time as [`set`](Self::set) does, by a function.
    ///
    /// # Errors
    /// The errors of the function.
    pub fn set_by<E>(
        &mut self,
        limit: Duration,
        set: impl FnOnce(Duration) -> Result<(), E>,
    ) -> Result<(), E> {
        let millis = limit.as_nanos().div_ceil(1_000_000).max(1);
        let limit = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        let suits = |before: Duration| before >= limit && before - limit <= SLACK;
        if !self.0.is_some_and(suits) {
            set(limit)?;
            self.0 = Some(limit);
        }
        Ok(())
    }
}

/// Returns whether a connection is open and nothing waits to be read. Does not block.
///
/// A server sends only replies. So on a connection without a request, only its end can be readable:
/// the end of the stream, an error, or TLS's alert before it.
pub fn is_quiet(socket: &TcpStream) -> bool {
    let peeked =
        recv(socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT).map_err(io::Error::from);
    matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Returns whether the server has closed the connection and all is read that it sent before: for a connection on which a
/// server also sends unasked.
pub fn has_ended(socket: &TcpStream) -> bool {
    let peeked = recv(socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    match peeked.map_err(io::Error::from) {
        Ok((_, count)) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (mut wire, top) = self.split();
        match top {
            Top::Plain => wire.read(buffer),
            Top::Tls(tls) => tls.over(&mut wire).read(buffer),
            Top::Layer(layer) => {
                wire.read_by(buffer, |_, buffer| without_signals(|| layer.read(buffer)))
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut wire, top) = self.split();
        match top {
            Top::Plain => wire.write(bytes),
            Top::Tls(tls) => tls.over(&mut wire).write(bytes),
            Top::Layer(layer) => wire.call(|_| without_signals(|| layer.write(bytes))),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let (mut wire, top) = self.split();
        match top {
            Top::Plain => wire.flush(),
            Top::Tls(tls) => tls.over(&mut wire).flush(),
            Top::Layer(layer) => wire.call(|_| without_signals(|| layer.flush())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn message_is_written_at_once_or_not_at_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new("test", &Endpoint::tcp("127.0.0.1", address.port()));
        let options = RemoteOptions::new(Endpoint::tcp("127.0.0.1", address.port()));
        let dialer = Dialer::new(&options).unwrap();
        let mut stream = dialer.dial(&server, Duration::from_secs(60)).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert!(stream.write_at_once(b"free").unwrap());
        let mut message = [0; 4];
        peer.read_exact(&mut message).unwrap();
        assert_eq!(&message, b"free");
        // The peer reads no more, so the buffers are full at some time.
        while send(stream.socket(), &[0; 1 << 16], SendFlags::DONTWAIT).is_ok() {}
        while send(stream.socket(), &[0], SendFlags::DONTWAIT).is_ok() {}
        assert!(!stream.write_at_once(b"full").unwrap());
    }

    /// A stopped server accepts no connections.
    #[cfg(target_os = "linux")]
    #[test]
    fn connecting_to_a_unix_socket_with_a_full_backlog_ends() {
        let name = format!("lockkeeper-backlog-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let endpoint = Endpoint::Unix(path.clone());
        let server = Server::new("test", &endpoint);
        let dialer = Dialer::new(&RemoteOptions::new(endpoint)).unwrap();
        let dial = || dialer.dial(&server, Duration::from_millis(20));
        let dialed: Vec<_> = (0..3).map(|_| dial()).collect();
        let error = dialed.last().unwrap().as_ref().err().unwrap();
        assert!(error.to_string().contains("connect timeout"), "{error}");
        assert!(dialed[0].is_ok());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn timeout_is_rounded_up_to_milliseconds_and_set_only_when_it_changes_noticeably() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut timeout = SocketTimeout::default();
        let ends = || {
            (
                socket.read_timeout().unwrap(),
                socket.write_timeout().unwrap(),
            )
        };
        let second = Duration::from_secs(1);
        // The kernel may round up to its own ticks, of 10 ms at most.
        let is_about = |limit| {
            ends()
                .0
                .is_some_and(|it| it >= limit && it < limit + second / 50)
        };

        timeout.set(&socket, second).unwrap();
        assert!(is_about(second) && ends().0 == ends().1, "{:?}", ends());

        // As a neighbour of the type would, to see whether it is set again.
        set_timeout(&socket, Some(5 * second)).unwrap();
        timeout.set(&socket, second - SLACK).unwrap();
        assert!(is_about(5 * second), "{:?}", ends());

        timeout
            .set(&socket, second + Duration::from_nanos(1))
            .unwrap();
        assert!(is_about(second), "{:?}", ends());
        // The kernel takes zero for no limit.
        timeout.set(&socket, Duration::ZERO).unwrap();
        assert!(is_about(Duration::ZERO), "{:?}", ends());
    }
}
