//! No lock at all, but a write that fails if another transaction has written since the read. No
//! thread waits for another one; a thread that was too late starts over. That is right, and quick
//! while few want the same thing. The more there are, the more work is done in vain.

pub(crate) mod mysql;
pub(crate) mod redis;
mod retry;
pub(crate) mod sqlite;
