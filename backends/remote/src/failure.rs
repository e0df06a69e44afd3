//! Classes of failure, and the errors that every backend reports with the same text.

use std::fmt;
use std::io;
use std::sync::Arc;

use lockkeeper_core::{Error, ErrorKind};

use crate::options::Endpoint;

/// How a request failed, and what is left of it on the server.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The request never reached the server.
    NotSent(Error),
    /// The connection has ended, or it leads to the wrong server, such as a former primary. What the
    /// server granted on it is gone. A new connection may work.
    Closed(Error),
    /// No reply came: the server may have carried out the request, or may do so later.
    Unanswered(Error),
    /// The server refused the request; the connection is still good.
    Refused(Error),
}

impl Failure {
    /// Returns what went wrong.
    pub fn error(&self) -> &Error {
        let (Self::NotSent(error)
        | Self::Closed(error)
        | Self::Unanswered(error)
        | Self::Refused(error)) = self;
        error
    }

    /// Returns the error for the caller.
    pub fn into_error(self) -> Error {
        self.error().clone()
    }
}

/// Returns the error of a server that cannot do what it should, and may do so later.
pub fn unavailable(text: &str) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

/// Returns the failure of a request whose deadline has passed. Sent nevertheless, it would cost the connection: there is no
/// time for the reply.
pub fn no_time() -> Failure {
    Failure::NotSent(unavailable(
        "there was no time left to ask the server; try again, or wait longer",
    ))
}

/// Returns the failure of a request that the server may still carry out.
pub fn unknown(text: &str) -> Failure {
    Failure::Unanswered(Error::new(ErrorKind::Unknown, text))
}

/// Returns the error of a request that cannot have granted anything: where its reply is missing, that
/// is [`ErrorKind::Unavailable`] and not unknown.
pub fn nothing_granted(failure: Failure) -> Error {
    let error = failure.into_error();
    match error.kind() {
        ErrorKind::Unknown => error.with_kind(ErrorKind::Unavailable),
        _ => error,
    }
}

/// Returns the error for a reply that no server gives to the request.
pub fn senseless() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the server's answer makes no sense; is something between it and this program?",
    )
}

/// Returns whether a socket's time-out was over; which of the two kinds it is depends on the system.
pub fn is_timeout(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// What the TLS library's text contains if the server has ended the handshake.
const ALERT: &str = "fatal alert";

/// Returns whether the TLS library did not trust the server, or the server ended TLS by an alert.
pub fn is_untrusted(text: &str) -> bool {
    text.contains("certificate") || text.contains(ALERT)
}

/// A server as errors name it: its protocol and its address.
#[derive(Clone, Debug)]
pub struct Server {
    protocol: &'static str,
    address: Arc<str>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server at {}", self.address)
    }
}

impl Server {
    /// A server at an endpoint that speaks `protocol`, such as `Redis`.
    pub fn new(protocol: &'static str, endpoint: &Endpoint) -> Self {
        Self {
            protocol,
            address: endpoint.to_string().into(),
        }
    }

    /// Returns what the server is, such as "a Redis server".
    fn kind(&self) -> String {
        let article = match self.protocol.starts_with(['a', 'e', 'i', 'o', 'u']) {
            true => "an",
            false => "a",
        };
        format!("{article} {} server", self.protocol)
    }

    /// The address, for people.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The server cannot be reached, so a listed fallback may be used.
    pub fn unreachable(&self, why: impl fmt::Display) -> Error {
        Error::unreachable(format!(
            "{self} cannot be reached: {why}; is it running, {}, and the address right?",
            self.kind()
        ))
    }

    /// The caller's deadline is over before anything was sent.
    pub fn no_time_to_connect(&self) -> Error {
        self.unreachable("there was no time left to connect")
    }

    /// The socket could not be opened.
    pub fn not_connected(&self, error: io::Error) -> Error {
        let described = match error.kind() {
            io::ErrorKind::PermissionDenied => Error::new(
                ErrorKind::PermissionDenied,
                format!("this user may not open {}", self.address),
            ),
            kind if is_timeout(kind) => self.unreachable("no answer within the connect timeout"),
            // The text has the cause.
            _ => return self.unreachable(&error),
        };
        described.with_source(error)
    }

    /// A socket was opened, and then no reply came to the first request. `hint` follows the text.
    pub fn says_nothing(&self, hint: &str) -> Error {
        self.unreachable(format_args!(
            "it takes connections, and then says nothing{hint}"
        ))
    }

    /// No reply came within the time for it.
    pub fn silent(&self) -> Error {
        let text = format!(
            "{self} did not answer in time; the request may still be in flight, and what it granted ends with its ttl"
        );
        Error::new(ErrorKind::Unknown, text)
    }

    /// The server has sent more than [`MAX_REPLY`](crate::MAX_REPLY) bytes in one exchange. `has_replied` says that an
    /// earlier reply was as it should be, so what answers is such a server.
    pub fn too_long(&self, has_replied: bool) -> Error {
        if !has_replied {
            return self.wrong_protocol("?");
        }
        let text = format!(
            "{self} sent a reply without an end; the request may still be in flight, and what it granted ends with its ttl"
        );
        Error::new(ErrorKind::Unknown, text)
    }

    /// The connection broke between a request and its reply.
    pub fn cut(&self) -> Error {
        let text = format!("the connection to {self} was cut before it answered");
        Error::new(ErrorKind::Unknown, text)
    }

    /// The server has closed the connection, and nothing of the request is left there.
    pub fn closed(&self) -> Error {
        let text = format!("{self} has closed the connection");
        Error::new(ErrorKind::Unavailable, text)
    }

    /// What answers is no such server. `hint` is a question for the reader.
    pub fn wrong_protocol(&self, hint: &str) -> Error {
        let Self { protocol, address } = self;
        let text = format!(
            "what answers at {address} does not speak the {protocol} protocol; is it {}{hint}",
            self.kind()
        );
        Error::new(ErrorKind::Incompatible, text)
    }

    /// Returns the error of a handshake that [`is_untrusted`] recognises. `text` is the TLS library's reason.
    pub fn untrusted(&self, text: &str) -> Error {
        let address = &self.address;
        let text = match text.contains(ALERT) {
            true => format!(
                "the server at {address} refuses the TLS of this client; if it wants a certificate, correct `cert_file` and `key_file` ({text})"
            ),
            false => format!(
                "the certificate of {address} is not trusted; name its authority with `ca_file`, and the host as the certificate does ({text})"
            ),
        };
        Error::new(ErrorKind::PermissionDenied, text)
    }

    /// All connections of the pool are in use; `users` says by what, `advice` what to do about it.
    pub fn exhausted(&self, pool_size: u32, users: &str, advice: &str) -> Error {
        let text = format!(
            "all {pool_size} connections to the server are in use{users}; raise `pool_size`{advice}"
        );
        Error::new(ErrorKind::PoolExhausted, text)
    }
}
