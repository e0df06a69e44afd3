//! The keys that every store behind a network takes, beside keys of its own.

use std::time::Duration;

use lockkeeper_core::{Key, MAX_DURATION, Takes};

/// The kernel keeps time-outs as signed numbers, so there is an upper bound.
const TIMEOUTS: Takes = Takes::Duration(Duration::from_millis(1), Duration::from_secs(86_400));

/// The user to log in with.
pub const USER: Key<String> = Key::new(
    "user",
    Takes::Text("text"),
    "none",
    "the user to log in with, unless the URL names one",
);

/// The password to log in with.
pub const PASSWORD: Key<String> = Key::new(
    "password",
    Takes::Text("text"),
    "none",
    "the password to log in with, unless the URL has one",
);

/// The largest number of connections.
pub const POOL_SIZE: Key<u32> = Key::new(
    "pool_size",
    Takes::Number(1, 1_000),
    "10",
    "the largest number of connections",
);

/// The longest time to open a connection.
pub const CONNECT_TIMEOUT: Key<Duration> = Key::new(
    "connect_timeout",
    TIMEOUTS,
    "2s",
    "the longest time to open a connection",
);

/// The longest time to wait for one reply.
pub const RESPONSE_TIMEOUT: Key<Duration> = Key::new(
    "response_timeout",
    TIMEOUTS,
    "1s",
    "the longest time to wait for one reply",
);

/// How long a server that was just started grants nothing.
pub const RESTART_GRACE: Key<Duration> = Key::new(
    "restart_grace",
    Takes::Duration(Duration::ZERO, MAX_DURATION),
    "0s",
    "how long a server that was just started grants nothing; with at least the ttl, no lock that the restart lost is still held; 0s is off",
);

/// The path of the server's Unix socket.
pub const SOCKET: Key<String> = Key::new(
    "socket",
    Takes::Text("a path"),
    "none",
    "the server's Unix socket, for a URL without host",
);

/// Whether connections are encrypted.
pub const TLS: Key<bool> = Key::new(
    "tls",
    Takes::FLAG,
    "off",
    "whether connections are encrypted",
);

/// A file of certificates to trust.
pub const CA_FILE: Key<String> = Key::new(
    "ca_file",
    Takes::Text("a path"),
    "the system's certificates",
    "with TLS: a PEM file of certificates to trust",
);

/// A file with the certificate of this client.
pub const CERT_FILE: Key<String> = Key::new(
    "cert_file",
    Takes::Text("a path"),
    "none",
    "with TLS: a PEM file of this client's certificate; needs `key_file`",
);

/// A file with the private key of this client's certificate.
pub const KEY_FILE: Key<String> = Key::new(
    "key_file",
    Takes::Text("a path"),
    "none",
    "with TLS: a PEM file of the private key for `cert_file`",
);
