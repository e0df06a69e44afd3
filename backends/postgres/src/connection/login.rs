//! Logging in: TLS, the start-up message and the password.
//!
//! SCRAM does not use channel binding: the certificate is checked, so a server in between is refused before
//! it asks for the password. A plain password is sent only over TLS and Unix sockets.

use std::io::{self, Read, Write};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use lockkeeper_core::{Error, ErrorKind, process_label};
use lockkeeper_remote::{RemoteOptions, Server};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use crate::connection::wire::Wire;
use crate::failure::{ServerError, incompatible};

/// The first version with `idle_session_timeout`, and with `client_connection_check_interval`.
const OLDEST_VERSION: u32 = 14;

/// The `application_name` of sessions, before the id of the process and its label.
pub(crate) const PROGRAM: &str = "lockkeeper ";

/// What a server reports about itself and the session during a login.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    pub(crate) version: String,
    /// The number by which the session is cancelled.
    pub(crate) pid: i32,
}

/// The state of a login. A server asks once, so a login sends only a few messages.
enum Login {
    Begun,
    /// The password was sent, or the server proved that it knows it.
    Answered,
    /// Only a server that knows the password gets from here to the next state.
    Scram(ScramSha256),
    Accepted,
}

/// Why a login failed.
pub(crate) enum LoginError {
    /// The socket failed.
    Socket(io::Error),
    /// The server or this program refuses.
    Refused(Error),
}

impl From<io::Error> for LoginError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<Error> for LoginError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Asks for TLS on a socket on which nothing was sent yet. The handshake takes place with the first message.
pub(crate) fn ask_for_tls(
    socket: &mut (impl Read + Write),
    server: &Server,
) -> Result<(), LoginError> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    let mut reply = [0];
    socket.write_all(&request)?;
    socket.read_exact(&mut reply)?;
    match &reply {
        b"S" => Ok(()),
        b"N" => Err(incompatible(format!(
            "{server} does not offer TLS; set `ssl = on` there, or write tls=off"
        ))
        .into()),
        _ => Err(server.wrong_protocol("?").into()),
    }
}

/// Logs in, and returns when the server is ready. The time limit is that of the last sent message.
/// `is_private` says that no other host can read the messages.
pub(crate) fn log_in(
    wire: &mut Wire,
    options: &RemoteOptions,
    database: &str,
    is_private: bool,
    server: &Server,
    mut send: impl FnMut(&mut Wire) -> io::Result<()>,
) -> Result<Greeting, LoginError> {
    let user = options.user.as_deref().unwrap_or_default();
    let password = || options.password.as_deref().ok_or_else(no_password);
    let label = process_label().map_or_else(String::new, |label| format!(" {label}"));
    let program = format!("{PROGRAM}{}{label}", std::process::id());
    let parameters = [
        ("user", user),
        ("database", database),
        ("client_encoding", "UTF8"),
        ("application_name", &*program),
    ];
    frontend::startup_message(parameters, &mut wire.out)?;
    send(wire)?;
    let mut greeting = Greeting::default();
    let mut login = Login::Begun;
    loop {
        login = match (wire.receive()?, login) {
            (Message::AuthenticationOk, Login::Begun | Login::Answered) => Login::Accepted,
            (Message::AuthenticationCleartextPassword, Login::Begun) if is_private => {
                frontend::password_message(password()?.as_bytes(), &mut wire.out)?;
                send(wire)?;
                Login::Answered
            }
            (Message::AuthenticationCleartextPassword, Login::Begun) => {
                return Err(readable().into());
            }
            (Message::AuthenticationMd5Password(body), Login::Begun) => {
                let hash = md5_hash(user.as_bytes(), password()?.as_bytes(), body.salt());
                frontend::password_message(hash.as_bytes(), &mut wire.out)?;
                send(wire)?;
                Login::Answered
            }
            (Message::AuthenticationSasl(body), Login::Begun) => {
                if !body.mechanisms().any(|name| Ok(name == SCRAM_SHA_256))? {
                    return Err(unsupported().into());
                }
                let password = password()?.as_bytes();
                let scram = ScramSha256::new(password, ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut wire.out)?;
                send(wire)?;
                Login::Scram(scram)
            }
            // A second one is an error.
            (Message::AuthenticationSaslContinue(body), Login::Scram(mut scram)) => {
                scram.update(body.data())?;
                frontend::sasl_response(scram.message(), &mut wire.out)?;
                send(wire)?;
                Login::Scram(scram)
            }
            (Message::AuthenticationSaslFinal(body), Login::Scram(mut scram)) => {
                scram.finish(body.data())?;
                Login::Answered
            }
            (
                Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential,
                Login::Begun,
            ) => return Err(unsupported().into()),
            (Message::ErrorResponse(body), _) => {
                return Err(ServerError::read(&body)?.explain(server).into());
            }
            (Message::ParameterStatus(body), login) => {
                if body.name()? == "server_version" {
                    body.value()?.clone_into(&mut greeting.version);
                }
                login
            }
            (Message::BackendKeyData(body), login) => {
                greeting.pid = body.process_id();
                login
            }
            (Message::NoticeResponse(_), login) => login,
            (Message::ReadyForQuery(_), Login::Accepted) => return Ok(greeting),
            _ => return Err(server.wrong_protocol("?").into()),
        };
    }
}

/// Refuses a server of a version such as `13.22 (Debian 13.22-0)`.
pub(crate) fn check_version(version: &str) -> Result<(), Error> {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let major = version.split(|letter| !is_digit(letter)).next();
    // A version that does not begin with a number is from a vendor.
    match major.and_then(|major| major.parse().ok()) {
        Some(0..OLDEST_VERSION) => Err(incompatible(format!(
            "version {version} of the server does not end idle sessions, so a dead holder would keep its lock; PostgreSQL from {OLDEST_VERSION} on does"
        ))),
        _ => Ok(()),
    }
}

fn no_password() -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        "the server wants a password; give one in the URL or as `password`",
    )
}

fn readable() -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        "the server wants the password as it is, and the network could read it; add tls=on, or set `scram-sha-256` in the server's pg_hba.conf",
    )
}

fn unsupported() -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        "the server wants a way to log in that is not supported; set `scram-sha-256` for this user in the server's pg_hba.conf",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_a_limit_for_idle_sessions_are_refused() {
        for version in ["14.0", "15.18 (Debian 15.18-0+deb12u1)", "18devel", "cloud"] {
            check_version(version).unwrap();
        }
        for version in ["13.22", "9.6.24"] {
            let error = check_version(version).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{version}");
            assert!(error.message().contains(version), "{error}");
        }
    }
}
