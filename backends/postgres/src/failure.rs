//! The meaning of errors of the server and of the connection, with advice.
//!
//! PgBouncer has one code for all its own errors, so its texts are listed here. Only an outage may open a fallback.
//! A full pool is no outage, since other programs hold locks behind it. An unknown text is no outage, either.

use std::io;

use fallible_iterator::FallibleIterator;
use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, is_timeout, is_too_long, is_untrusted, senseless};
use postgres_protocol::message::backend::ErrorResponseBody;

/// The text about a pooler that cannot be used for locks.
pub(crate) const MULTIPLEXED: &str = "something between this program and the server hands out the server's sessions for a transaction at a time (PgBouncer with pool_mode=transaction, or the like), and a lock belongs to one session; connect to the server itself, or to a pool with pool_mode=session";

/// An error that the server replied with.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerError {
    /// The SQLSTATE, five letters.
    pub(crate) state: String,
    message: String,
    /// Whether the session has ended.
    pub(crate) is_fatal: bool,
    /// Whether the statement was prepared before.
    pub(crate) is_prepared: bool,
}

/// The codes by which a server would report PgBouncer's errors, with parts of PgBouncer's texts. The first match
/// counts, since the text of an outage may quote the server's own error.
///
/// Before version 1.20, PgBouncer also sends only the server's own text if the first login to the server fails.
///
/// No other text is an outage: a fallback is opened only if the server cannot be reached.
const SAID_BY_PGBOUNCER: [(&str, &[&str]); 8] = [
    (ServerError::OTHER_SESSION, &["pooling mode"]),
    (
        "53300",
        // The second is the end of a wait for a session of the pool.
        &[
            "no more connections",
            "query_wait_timeout",
            "too many c",
            "connections exceeded",
            "remaining connection slots",
        ],
    ),
    (
        "28P01",
        &[
            "authentication failed",
            "no such user",
            "server login failed",
        ],
    ),
    (
        "28000",
        &[
            "SSL required",
            "login rejected",
            "no pg_hba.conf entry",
            "role \"",
        ],
    ),
    ("3D000", &["no such database", "does not exist"]),
    // By an operator.
    (
        "57P01",
        &[
            "is disabled",
            "admin forced disconnect",
            "terminating connection",
        ],
    ),
    (
        "57P03",
        &[
            "server login has been failing",
            "server down",
            "server conn crashed",
            "server DNS lookup failed",
            "cannot connect",
            "connect failed",
            "connect timeout",
            "shutting down",
            "suspend",
            "pause",
            // By the server.
            "starting up",
            "in recovery mode",
            "not yet accepting connections",
            "not accepting connections",
        ],
    ),
    // By a limit. With "(server down)", the first is an outage.
    (
        "57P01",
        &[
            "client_login_timeout",
            "no memory",
            "out of memory",
            "resources exhaustion",
        ],
    ),
];

impl ServerError {
    /// A wait timed out (`lock_timeout`).
    pub(crate) const LOCK_TIMEOUT: &str = "55P03";
    /// A protocol violation. PgBouncer uses it for all its own errors, and ends the connection.
    const PROTOCOL: &str = "08P01";
    /// A statement that was prepared in another session is not known.
    const OTHER_SESSION: &str = "26000";

    pub(crate) fn read(body: &ErrorResponseBody) -> io::Result<Self> {
        let mut error = Self::default();
        let mut fields = body.fields();
        while let Some(field) = fields.next()? {
            let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => error.state = text(),
                b'M' => error.message = text(),
                // Unlike `S`, it is never translated. PgBouncer sends `S` alone.
                b'V' | b'S' => error.is_fatal |= matches!(&*text(), "FATAL" | "PANIC"),
                _ => {}
            }
        }
        Ok(error)
    }

    /// Returns whether the server undid the transaction, since another one was in its way.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&*self.state, "40001" | "40P01")
    }

    /// Returns whether something has the name of what was to be made, or is given it at the same time.
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(&*self.state, "23505" | "42710" | "42P07")
    }

    /// Returns the failure of a request on a connection that was open.
    pub(crate) fn into_failure(self, server: &Server) -> Failure {
        // A pool with pool_mode=statement refuses a transaction, and closes the connection.
        if self.is_fatal && self.meaning() != Self::OTHER_SESSION {
            Failure::Closed(server.closed().with_source(self.explain(server)))
        } else {
            Failure::Refused(self.explain(server))
        }
    }

    /// Returns the code by which a server would report the error. PgBouncer has one code for all its errors.
    fn meaning(&self) -> &str {
        if self.state != Self::PROTOCOL || !self.is_fatal {
            return &self.state;
        }
        let says = |text: &&str| self.message.contains(text);
        let known = SAID_BY_PGBOUNCER
            .iter()
            .find(|(_, texts)| texts.iter().any(says));
        known.map_or(Self::PROTOCOL, |(meaning, _)| meaning)
    }

    /// Returns the error for the user: its kind, and the advice.
    pub(crate) fn explain(&self, server: &Server) -> Error {
        let Self { state, message, .. } = self;
        let (kind, advice) = match self.meaning() {
            // Each error of a PostgreSQL server has a code.
            "" => return server.wrong_protocol("?"),
            "28P01" | "28000" => (
                ErrorKind::PermissionDenied,
                "the server does not accept this user and password from here; check `user` and `password`, the server's pg_hba.conf, `tls=on` if the user must come by TLS, and `cert_file` if it must show a certificate",
            ),
            "3D000" => (
                ErrorKind::InvalidValue,
                "the server has no database of that name; correct the URL's path or `db`",
            ),
            "42501" => (
                ErrorKind::PermissionDenied,
                "the user may not do what it was asked for; a lock needs CONNECT on the database, and `unlock` needs pg_signal_backend",
            ),
            "53300" => (
                ErrorKind::Unavailable,
                "the server has all the connections that it allows; raise its `max_connections` (or the limit of the user or database), or lower `pool_size`",
            ),
            "53200" => (
                ErrorKind::Unavailable,
                "the server has no room for another lock; raise its `max_locks_per_transaction`",
            ),
            "57P03" => return server.not_ready(message),
            "40P01" => (
                ErrorKind::Deadlock,
                "the server found that this wait would never end: others wait for each other in a circle; take names in one order everywhere",
            ),
            "57014" | "57P01" | "57P02" | "57P04" | "57P05" | Self::LOCK_TIMEOUT => (
                ErrorKind::Unavailable,
                "the statement or its session was ended by an operator or a limit; try again",
            ),
            "0A000" | "42601" | "42704" | "42883" => (
                ErrorKind::Incompatible,
                "the server does not know what a lock needs; PostgreSQL from 14 on does",
            ),
            // A statement was prepared in one session of the server, and run or prepared again in another.
            Self::OTHER_SESSION | "42P05" => (ErrorKind::Incompatible, MULTIPLEXED),
            _ => (ErrorKind::Incompatible, "the server refuses"),
        };
        Error::new(
            kind,
            format!("{advice} (the server says: {state} {message})"),
        )
    }
}

/// Classifies an error of the socket on a connection that was open.
pub(crate) fn classify(error: io::Error, server: &Server) -> Failure {
    match error.kind() {
        kind if is_timeout(kind) => Failure::Unanswered(server.silent().with_source(error)),
        _ if is_too_long(&error) => Failure::Unanswered(server.too_long(true).with_source(error)),
        // The message cannot be read.
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            Failure::Unanswered(senseless().with_source(error))
        }
        _ => Failure::Closed(server.closed().with_source(error)),
    }
}

/// Returns the error for an error of the socket while a connection is opened.
pub(crate) fn not_connected(error: io::Error, server: &Server, tls: bool) -> Error {
    let text = error.to_string();
    let described = match error.kind() {
        // rustls' own errors come through the reading.
        _ if tls && is_untrusted(&text) => return server.untrusted(&text),
        kind if is_timeout(kind) => server.says_nothing(""),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => server.wrong_protocol("?"),
        _ => server.unreachable("it broke off while the connection was opened"),
    };
    described.with_source(error)
}

pub(crate) fn unavailable(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

pub(crate) fn incompatible(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Incompatible, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_remote::Endpoint;

    #[test]
    fn errors_are_classified_by_what_is_left_on_the_server() {
        let server = Server::new("PostgreSQL", &Endpoint::tcp("here", 1));
        let error = |state: &str, is_fatal| ServerError {
            state: state.to_owned(),
            message: "so it is".to_owned(),
            is_fatal,
            is_prepared: false,
        };
        for state in ["57P05", "57P01", "XX000"] {
            let failure = error(state, true).into_failure(&server);
            assert!(matches!(failure, Failure::Closed(_)), "{failure:?}");
        }
        for (state, kind) in [
            ("40P01", ErrorKind::Deadlock),
            ("57014", ErrorKind::Unavailable),
            ("53200", ErrorKind::Unavailable),
            ("42501", ErrorKind::PermissionDenied),
            ("99999", ErrorKind::Incompatible),
        ] {
            let failure = error(state, false).into_failure(&server);
            assert!(
                matches!(&failure, Failure::Refused(error) if error.kind() == kind),
                "{failure:?}"
            );
        }
        for (says, state) in [
            ("password authentication failed", "28P01"),
            ("SSL required", "28000"),
            ("login rejected", "28000"),
            ("no such database: shop", "3D000"),
            ("database \"shop\" does not exist", "3D000"),
            ("role \"shop\" does not exist", "28000"),
            ("no more connections allowed (max_client_conn)", "53300"),
            ("query_wait_timeout", "53300"),
            ("database \"shop\" is disabled", "57P01"),
            ("unsupported startup parameter: options", "08P01"),
            ("bouncer config error", "08P01"),
            ("server login has been failing", "57P03"),
            (
                "server login has been failing, cached error: password authentication failed for user \"shop\" (server_login_retry)",
                "28P01",
            ),
            ("client_login_timeout (server down)", "57P03"),
            ("client_login_timeout", "57P01"),
            ("no memory", "57P01"),
            ("out of memory", "57P01"),
            ("resources exhaustion", "57P01"),
            ("pooler is shutting down", "57P03"),
            ("the database system is starting up", "57P03"),
            ("the database system is in recovery mode", "57P03"),
            (
                "the database system is not yet accepting connections",
                "57P03",
            ),
            ("the database system is not accepting connections", "57P03"),
            // A setting of the database.
            (
                "database \"shop\" is not currently accepting connections",
                "08P01",
            ),
            (
                "remaining connection slots are reserved for non-replication superuser connections",
                "53300",
            ),
            (
                "terminating connection due to administrator command",
                "57P01",
            ),
            (
                "transaction blocks not allowed in statement pooling mode",
                "26000",
            ),
        ] {
            let message = says.to_owned();
            let error = ServerError {
                message,
                ..error("08P01", true)
            };
            assert_eq!(error.meaning(), state, "{says}");
            let unreachable = error.explain(&server).is_unreachable();
            assert_eq!(unreachable, state == "57P03", "{says}");
        }
        for (kind, is_closed) in [
            (io::ErrorKind::WouldBlock, false),
            (io::ErrorKind::InvalidData, false),
            (io::ErrorKind::UnexpectedEof, true),
            (io::ErrorKind::BrokenPipe, true),
        ] {
            let failure = classify(kind.into(), &server);
            let closed = matches!(failure, Failure::Closed(_));
            let unanswered = matches!(failure, Failure::Unanswered(_));
            assert_eq!((closed, unanswered), (is_closed, !is_closed), "{kind}");
        }
    }
}
