//! Classes of failures, and the errors whose texts all backends share.

use std::fmt;
use std::io;
use std::sync::Arc;

use lockkeeper_core::{Error, ErrorKind};

use crate::options::Endpoint;

/// How a request failed, and whether the server may still carry it out.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The request never reached the server.
    NotSent(Error),
    /// The connection has ended, or it leads to the wrong server, such as a former primary. What the
    /// server granted on it is gone. A new connection may work.
    Closed(Error),
    /// No reply came. The server may have carried out the request, or may do so later.
    Unanswered(Error),
    /// The server refused the request. The connection can be used again.
    Refused(Error),
}

impl Failure {
    /// Returns the error of the failure.
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

/// Returns the error of a server that cannot serve now, and may do so later.
pub fn unavailable(text: &str) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

/// Returns the failure of a request whose deadline has passed. The request is not sent: there is no time for the
/// reply, so the connection would have to be closed.
pub fn no_time() -> Failure {
    Failure::NotSent(Error::not_sent(
        "there was no time left to ask the server; try again, or wait longer",
    ))
}

/// Returns the failure of a request that the server may still carry out.
pub fn unknown(text: &str) -> Failure {
    Failure::Unanswered(Error::new(ErrorKind::Unknown, text))
}

/// Returns the error of a request that cannot have granted anything. A missing reply is
/// [`ErrorKind::Unavailable`] then, and not [`ErrorKind::Unknown`].
pub fn nothing_granted(failure: Failure) -> Error {
    let error = failure.into_error();
    match error.kind() {
        ErrorKind::Unknown => error.with_kind(ErrorKind::Unavailable),
        _ => error,
    }
}

/// Returns the error for a reply that does not fit the request.
pub fn senseless() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the server's answer makes no sense; is something between it and this program?",
    )
}

/// Returns whether a socket's time-out was over. The system decides which of the two kinds it reports.
pub fn is_timeout(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// The part of the TLS library's text that says that the server ended the handshake.
const ALERT: &str = "fatal alert";

/// Returns whether the TLS library did not trust the server, or the server ended TLS by an alert.
pub fn is_untrusted(text: &str) -> bool {
    text.contains("certificate") || text.contains(ALERT)
}

/// The protocol and the address of a server, as errors name them.
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
    /// Makes the description of a server at `endpoint` that speaks `protocol`, such as `Redis`.
    pub fn new(protocol: &'static str, endpoint: &Endpoint) -> Self {
        Self {
            protocol,
            address: endpoint.to_string().into(),
        }
    }

    /// Returns the kind of the server with an article, such as "a Redis server".
    fn kind(&self) -> String {
        let article = match self.protocol.starts_with(['a', 'e', 'i', 'o', 'u']) {
            true => "an",
            false => "a",
        };
        format!("{article} {} server", self.protocol)
    }

    /// Returns the address, as people write it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the error of a server that cannot be reached. Only after this error, opening uses a listed
    /// fallback.
    pub fn unreachable(&self, why: impl fmt::Display) -> Error {
        Error::unreachable(format!(
            "{self} cannot be reached: {why}; is it running, {}, and the address right?",
            self.kind()
        ))
    }

    /// Returns the error of a server that answers that it cannot serve yet, or any more. A fallback is opened after it, too.
    pub fn not_ready(&self, said: impl fmt::Display) -> Error {
        Error::unreachable(format!(
            "{self} answers that it does not serve: {said}; wait for it, or look into its log"
        ))
    }

    /// Returns the error of a caller whose deadline passed before anything was sent.
    pub fn no_time_to_connect(&self) -> Error {
        self.unreachable("there was no time left to connect")
    }

    /// Returns the error of a socket that could not be opened.
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

    /// Returns the error of a server that accepted a connection, and sent no reply to the first request.
    /// `hint` follows the text.
    pub fn says_nothing(&self, hint: &str) -> Error {
        self.unreachable(format_args!(
            "it takes connections, and then says nothing{hint}"
        ))
    }

    /// Returns the error of a request without a reply in time.
    pub fn silent(&self) -> Error {
        let text = format!(
            "{self} did not answer in time; the request may still be in flight, and what it granted ends with its ttl"
        );
        Error::new(ErrorKind::Unknown, text)
    }

    /// Returns the error of a server that sent more than [`MAX_REPLY`](crate::MAX_REPLY) bytes in one exchange.
    /// `has_replied`: an earlier reply was valid, so the server speaks the protocol.
    pub fn too_long(&self, has_replied: bool) -> Error {
        if !has_replied {
            return self.wrong_protocol("?");
        }
        let text = format!(
            "{self} sent a reply without an end; the request may still be in flight, and what it granted ends with its ttl"
        );
        Error::new(ErrorKind::Unknown, text)
    }

    /// Returns the error of a connection that broke between a request and its reply.
    pub fn cut(&self) -> Error {
        let text = format!("the connection to {self} was cut before it answered");
        Error::new(ErrorKind::Unknown, text)
    }

    /// Returns the error of a connection that the server has closed. The server does not carry out the
    /// request.
    pub fn closed(&self) -> Error {
        let text = format!("{self} has closed the connection");
        Error::new(ErrorKind::Unavailable, text)
    }

    /// Returns the error of a server that speaks another protocol. `hint` is the end of the question in the
    /// text.
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
                "the certificate of {address} is not trusted, and is always checked, also where other clients do not (`sslmode=require`); name its authority with `ca_file`, and the host as the certificate does ({text})"
            ),
        };
        Error::new(ErrorKind::PermissionDenied, text)
    }
}
