//! Locks that sessions hold, for any store that frees the locks of a session with its end: MySQL's named locks and
//! PostgreSQL's advisory locks.
//!
//! A backend implements [`SessionConnection`]: the requests on one connection, and how the server waits. The rest is
//! here. Free names share sessions, and those of one call travel in one statement. A caller that waits has a session
//! of its own, and waits in the server. A lease ends with its session, or by the sweeper, which releases what no
//! guard renews.

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
// - The lease of a session ends with it. The connections of a provider are watched on one thread; when the
//   server closes one, its leases are lost there and the keepers verify all of theirs.
// - Waits of sessions never occupy the last connection of a pool of several. So waiting threads alone never use
//   the pool up, and a thread that holds a lease gets to its attempt for another name.

mod abandoned;
mod acquire;
mod attempt;
mod batch;
mod connection;
mod detached;
mod driver;
mod lease;
mod link;
mod registry;
mod requests;
mod session;
mod state;
mod store;

pub use connection::{SessionConnection, SessionName};
pub use driver::driver_options;
pub use lease::SessionLease;
pub use link::{LinkShared, SessionLink};
pub use registry::Sessions;
pub use requests::{Attempted, Replies, Requests};
pub use store::SessionStore;
