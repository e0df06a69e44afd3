//! Locks that sessions hold, for any store that frees the locks of a session with its end: MySQL's named locks and
//! PostgreSQL's advisory locks.
//!
//! A backend implements [`SessionConnection`]: the requests on one connection, and how the server waits. The rest is
//! here. Free names share sessions, and those of one call travel in one statement. A caller that waits has a session
//! of its own, and waits in the server. A lease ends with its session, or by the sweeper, which releases what no
//! guard renews.
//!
//! # Connections
//! They are opened when they are needed, at most [`pool_size`](lockkeeper_remote::RemoteOptions::pool_size) of them, and
//! serve locks alone. A wait takes a connection of its own, and a name that was waited for keeps that connection while it
//! is held. Names that were free share half of the pool, many on one connection; the names on one connection have the
//! same ttl.
//!
//! Waits never take the last connection, so a free name can be locked whatever is waited for. While a caller finds no
//! connection for its wait, it asks the server again after pauses of at most 250 ms. A name gets
//! [`ErrorKind::PoolExhausted`](lockkeeper_core::ErrorKind::PoolExhausted) if all connections are in use for longer than
//! the response timeout, and none of them holds names of its ttl.
//!
//! # Limits
//! - Ending a session or the server frees all that the session holds. Its guards are lost at once, since the provider
//!   watches its connections on one thread. A holder that is stopped or
//!   cut off then finds out later, while others are granted its names: see
//!   [`restart_grace`](lockkeeper_remote::RemoteOptions::restart_grace) for a restart.
//! - A server that does not answer for the rest of a lease costs all leases of that session.
//! - Processes that take the same names in different orders can wait for each other. The server finds no such deadlock,
//!   since a session that waits holds no name; the waits end at their deadlines. Take names in one order.
//! - Finding a host's addresses takes as long as the system's resolver does.
//! - Do not use a provider on both sides of a fork; open it after forking.

// What must never be otherwise:
// - A batch on sessions waits for no connection of the pool. An attempt that finds none is answered so, and the
//   engine asks without a batch.
// - A call on a session is cut short only if it concerns all names of the session.
// - A name is not requested on a session that holds it, or on which its lease has expired. The server would
//   grant it again, and a proof of the old lease would hold for the new one.
// - A name is entered in its session before it is requested, and is never twice in one statement. The server
//   would grant it twice.
// - The connection of a session is never closed, or its call cut short, while a lease on it is valid. Closing
//   frees all names of the session at once. A connection that did not reply is not used again and stays open
//   until then.
// - The reply to a release that was sent is read before all that follows on its connection, or the connection is closed.
// - The lease of a session ends with it. The connections of a provider are watched on one thread; when the
//   server closes one, its leases are lost there and the keepers verify all of theirs.
// - Waits of sessions never occupy the last connection of a pool of several. So waiting threads alone never use
//   the pool up, and a thread that holds a lease gets to its attempt for another name.

mod abandoned;
mod acquire;
mod batch;
mod connection;
mod detached;
mod driver;
mod lease;
mod link;
mod requests;
mod session;
mod sessions;
mod state;
mod store;

pub use connection::{SessionConnection, SessionName};
pub use driver::{TlsNames, driver_options};
pub use lease::SessionLease;
pub use link::{LinkShared, SessionLink};
pub use requests::{Attempted, Replies, Requests};
pub use sessions::Sessions;
pub use store::SessionStore;
