//! Locks over any store that can read an entry, and write it if it has not changed since.
//!
//! A backend implements [`RegisterStore`]: how it reads, writes, keeps a session and waits. The rest is here.

mod key;
mod lease;
mod store;

pub use key::Key;
pub use lease::RegisterLease;
pub use store::{Call, Entry, Read, RegisterStore, SessionId, Version, View, Write};
