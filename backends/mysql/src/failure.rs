//! The meaning of errors of the server and of the connection, with advice.

use std::io;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, is_timeout, is_untrusted, senseless, unavailable};
use mysql::DriverError::{
    CleartextPluginDisabled, ConnectTimeout, CouldNotConnect, OldMysqlPasswordDisabled,
    TlsNotSupported, UnknownAuthPlugin,
};
#[cfg(feature = "tls")]
use mysql::Error::TlsError;
use mysql::Error::{CodecError, DriverError, IoError, MySqlError};
use mysql_common::proto::codec::error::PacketCodecError;

/// Classifies an error of the mysql crate on a connection that was open. `has_ended` says whether the server
/// has closed that connection.
///
/// MySQL sends the reason (4031) before it closes an idle session, without a request. To the mysql crate,
/// that packet is a reply out of order. The end of the stream may arrive later than the packet, so without
/// the end, the outcome is unknown.
pub(crate) fn classify(
    error: mysql::Error,
    server: &Server,
    has_ended: impl FnOnce() -> bool,
) -> Failure {
    let is_closed = match &error {
        MySqlError(said) if !ENDED.contains(&said.code) => return Failure::Refused(refused(said)),
        MySqlError(_) => true,
        CodecError(PacketCodecError::PacketsOutOfSync) => has_ended(),
        _ => match io_kind(&error) {
            // A packet that cannot be read.
            None | Some(io::ErrorKind::InvalidData) => {
                return Failure::Unanswered(senseless().with_source(error));
            }
            Some(kind) => !is_timeout(kind),
        },
    };
    if is_closed {
        Failure::Closed(server.closed().with_source(error))
    } else {
        Failure::Unanswered(server.silent().with_source(error))
    }
}

/// Returns the kind of an error of the socket.
fn io_kind(error: &mysql::Error) -> Option<io::ErrorKind> {
    match error {
        IoError(io) | CodecError(PacketCodecError::Io(io)) => Some(io.kind()),
        _ => None,
    }
}

pub(crate) fn incompatible(text: &str) -> Error {
    Error::new(ErrorKind::Incompatible, text)
}

fn denied(text: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, text)
}

/// The codes of a session that has ended. It was killed, lost, or idle for too long, the server shut
/// down, or the server noticed network errors.
const ENDED: [u16; 11] = [
    1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 4031,
];

/// Returns whether by this code a proxy says that it cannot reach the server. MySQL Router and MaxScale use the
/// codes of clients, and ProxySQL has other codes. 9003 refuses a command.
///
/// Other codes of clients, such as 2026 for TLS, are no outage: a fallback is opened only if the server cannot be
/// reached.
fn is_outage_behind_proxy(code: u16) -> bool {
    matches!(code, 2002 | 2003 | 2005 | 2055 | 9001 | 9002 | 9004..=9999)
}

/// Returns whether a server, MySQL or MariaDB, ended a wait at its time limit.
pub(crate) fn is_time_over(error: &mysql::Error) -> bool {
    matches!(error, MySqlError(said) if matches!(said.code, 3024 | 1969))
}

/// Returns the error for an error reply: its kind, and the advice for the user.
pub(crate) fn refused(said: &mysql::MySqlError) -> Error {
    let error = match said.code {
        code if is_outage_behind_proxy(code) => unavailable(
            "what is between this program and the server cannot reach it; is it running?",
        ),
        1021 | 1037 | 1038 | 1041 => unavailable("the server is short of memory or of disk"),
        1045 | 1698 => denied(
            "the server does not accept this user and password; check `user` and `password`, and `tls=on` if the user must come by TLS",
        ),
        1044 => denied(
            "the user may not use this database; grant it, or leave `db` out: locks need none",
        ),
        1049 => Error::new(
            ErrorKind::InvalidValue,
            "the server has no database of that name; correct `db`, or leave it out: locks need none",
        ),
        1129 | 1130 => denied(
            "the server takes no connections from this host; see its users and `max_connect_errors`",
        ),
        // The first three are codes of clients, which MySQL Router sends.
        2026 | 2059 | 2061 | 3159 | 1835 => {
            denied("the server wants TLS, or another way to log in; try tls=on")
        }
        1820 | 1862 | 3118 | 4151 => {
            denied("the user's password has expired, or the user is locked")
        }
        1142 | 1143 | 1227 | 1370 | 1231 => denied(
            "the user may not do what a lock needs: SET SESSION wait_timeout, GET_LOCK, IS_USED_LOCK, RELEASE_LOCK",
        ),
        1461 => unavailable(
            "the server has all the prepared statements that it allows; raise its `max_prepared_stmt_count`, or find out which program leaves its statements open",
        ),
        1040 | 1203 | 1226 | 1135 => unavailable(
            "the server has all the connections that it allows; raise its `max_connections` (or the user's limit), or lower `pool_size`",
        ),
        3058 | 1213 => Error::new(
            ErrorKind::Deadlock,
            "the server found that this wait would never end: others wait for each other in a circle; take names in one order everywhere",
        ),
        1317 | 3024 | 1969 | 1205 => {
            unavailable("the statement was ended by a KILL or a limit; try again")
        }
        1047 => unavailable("this node of a cluster is not ready"),
        1095 => denied(
            "the user may not end another user's session; grant it CONNECTION_ADMIN (MySQL) or CONNECTION ADMIN (MariaDB)",
        ),
        3032 => unavailable("the server is in offline mode (`offline_mode`)"),
        3057 | 4163 => incompatible(
            "the server does not take the name of the lock; this is a defect of the backend, please report it",
        ),
        1568 => incompatible(
            "a session that the application's function gave is in a transaction; have the function commit or roll back first",
        ),
        // The session has lost its prepared statements.
        1243 => multiplexed(),
        1064 | 1193 | 1305 | 1235 => incompatible(
            "the server does not know what a lock needs; MySQL from 5.7.8 and MariaDB from 10.1.1 on do",
        ),
        _ => incompatible("the server refuses"),
    };
    let (advice, mysql::MySqlError { code, message, .. }) = (error.message(), said);
    let text = format!("{advice} (the server says: {code} {message})");
    Error::new(error.kind(), text)
}

/// Returns the error for an error of the mysql crate while a connection is opened.
pub(crate) fn not_connected(error: mysql::Error, server: &Server, tls: bool) -> Error {
    let text = error.to_string();
    // An error whose text is part of this error's text is not its source as well.
    let described = match &error {
        MySqlError(said) if ENDED.contains(&said.code) || is_outage_behind_proxy(said.code) => {
            return server.not_ready(&said.message);
        }
        MySqlError(said) => return refused(said),
        DriverError(ConnectTimeout) => return server.not_connected(io::ErrorKind::TimedOut.into()),
        DriverError(CouldNotConnect(Some((_, why, kind)))) => {
            return server.not_connected(io::Error::new(*kind, why.clone()));
        }
        DriverError(TlsNotSupported) => incompatible(&format!(
            "{server} does not offer TLS; give it a certificate, or write tls=off"
        )),
        DriverError(UnknownAuthPlugin(_) | OldMysqlPasswordDisabled | CleartextPluginDisabled) => {
            return denied(&format!(
                "{server} wants a way to log in that is not supported, as it does of users that it does not know; check `user` and `password`, or change how the user logs in ({text})"
            ));
        }
        // The crate has looked for the key of the server: see `MySqlOptions::opts`.
        IoError(io) if io.kind() == io::ErrorKind::NotFound && !tls => {
            return denied(&format!(
                "{server} asks for the password itself, as at the first login of a user and after a wrong proof: check `user` and `password`; without TLS, whatever answers there would learn the password, so write tls=on, name the server's public key by `server_key_file`, or use its Unix socket"
            ));
        }
        #[cfg(feature = "tls")]
        TlsError(_) => return server.untrusted(&text),
        _ => match io_kind(&error) {
            // rustls' own errors come through the reading.
            Some(_) if tls && is_untrusted(&text) => return server.untrusted(&text),
            Some(kind) if is_timeout(kind) => server.says_nothing(""),
            None | Some(io::ErrorKind::InvalidData) => server.wrong_protocol("?"),
            Some(_) => server.unreachable("it broke off while the connection was opened"),
        },
    };
    described.with_source(error)
}

/// Returns the error of a connection whose requests do not stay in one session.
pub(crate) fn multiplexed() -> Error {
    incompatible(
        "something between this program and the server shares out its connections or resets their sessions (ProxySQL, MaxScale or the like), and a named lock belongs to one session; connect to the server itself",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_remote::Endpoint;

    #[test]
    fn errors_are_classified_by_what_is_left_on_the_server() {
        let number = |code| {
            MySqlError(mysql::MySqlError {
                state: "HY000".to_owned(),
                message: "so it is".to_owned(),
                code,
            })
        };
        let io = |kind| IoError(io::Error::from(kind));
        let server = Server::new("MySQL", &Endpoint::tcp("here", 1));
        let ended = ENDED.map(number).into_iter();
        for error in ended.chain([io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof].map(io))
        {
            let failure = classify(error, &server, || true);
            assert!(matches!(failure, Failure::Closed(_)), "{failure:?}");
        }
        for (code, kind) in [
            (3058, ErrorKind::Deadlock),
            (1213, ErrorKind::Deadlock),
            (1317, ErrorKind::Unavailable),
            (1040, ErrorKind::Unavailable),
            (1461, ErrorKind::Unavailable),
            (4163, ErrorKind::Incompatible),
            (3057, ErrorKind::Incompatible),
            (1045, ErrorKind::PermissionDenied),
            (1041, ErrorKind::Unavailable),
            (9001, ErrorKind::Unavailable),
            (2026, ErrorKind::PermissionDenied),
            (9003, ErrorKind::Incompatible),
            (65_000, ErrorKind::Incompatible),
        ] {
            let failure = classify(number(code), &server, || true);
            assert!(
                matches!(&failure, Failure::Refused(error) if error.kind() == kind),
                "{failure:?}"
            );
        }
        // At a login, also while the server shuts down, and of a proxy before it.
        for code in ENDED.into_iter().chain([2003, 9001, 1040]) {
            let error = not_connected(number(code), &server, false);
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{code}");
            assert_eq!(error.is_unreachable(), code != 1040, "{code}");
        }
        // What MySQL Router says of settings.
        for (code, kind) in [
            (2026, ErrorKind::PermissionDenied),
            (2059, ErrorKind::PermissionDenied),
            (2061, ErrorKind::PermissionDenied),
            (2027, ErrorKind::Incompatible),
        ] {
            let error = not_connected(number(code), &server, false);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(!error.is_unreachable(), "{code}");
        }
        let failure = classify(io(io::ErrorKind::WouldBlock), &server, || true);
        assert!(
            matches!(failure, Failure::Unanswered(error) if error.kind() == ErrorKind::Unknown)
        );
    }
}
