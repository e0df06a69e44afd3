//! Shared parts of the lockkeeper backends whose store is a server behind a network.
//!
//! This crate knows no store. A backend adds its protocol or statements, its way to wait, its
//! capabilities, and its interface for operators.

mod backoff;
mod cancel;
mod connect;
mod counts;
mod exchange;
mod failure;
mod findings;
mod grace;
mod http;
pub mod keys;
mod members;
mod options;
mod pool;
mod signals;
mod socket;
mod socket_watch;
mod supplier;
#[cfg_attr(not(feature = "tls"), path = "tls_off.rs")]
mod tls;
mod transport;

pub use backoff::Backoff;
pub use cancel::{cancelled, connect_until_cancelled, pause, until_cancelled};
pub use connect::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, connect_any};
pub use counts::{Counts, OpenConnection};
pub use exchange::{MAX_REPLY, is_too_long};
pub use failure::{
    Failure, Server, is_timeout, is_untrusted, no_time, nothing_granted, senseless, unavailable,
    unknown,
};
pub use findings::{connections_finding, restart_finding};
pub use grace::RestartGrace;
pub use http::{Http, HttpReply};
pub use members::{Member, Members};
pub use options::{Endpoint, RemoteOptions, given_once};
pub use pool::{Connection, Found, Pool, PooledConn, WaitPermit};
pub use signals::without_signals;
pub use socket::{Dialer, SocketTimeout, Stream, has_ended, is_quiet};
pub use socket_watch::{SocketWatch, WatchedSocket};
pub use supplier::Supplier;
pub use transport::Transport;

/// The time that one attempt gets when no time is left. It is the time for which a guard's drop waits.
pub const LAST_ATTEMPT: std::time::Duration = std::time::Duration::from_millis(80);
