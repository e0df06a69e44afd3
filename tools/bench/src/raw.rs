//! The least that keeps a lock by hand on each store: one connection without a lease, a pool or a thread. It is the
//! floor of rows.

pub(crate) mod consul;
pub(crate) mod etcd;
mod http;
pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod sqlite;
pub(crate) mod zookeeper;

use std::error::Error;

pub(crate) type Done<T = ()> = Result<T, Box<dyn Error>>;

/// A raw connection to a store.
pub(crate) trait Raw {
    /// Acquires and releases a free name by two requests.
    fn pair(&mut self) -> Done;

    /// Acquires and releases many free names by requests that are sent together. Returns how many.
    fn pairs(&mut self) -> Done<usize>;

    /// Makes the least request that waits for what a release waits for.
    fn round_trip(&mut self) -> Done;
}

/// How many names are locked together, where each has a request or an operation of its own.
const PIPELINE: usize = 64;
/// How many names a statement locks.
const NAMES_PER_STATEMENT: usize = 32;

/// Returns an error unless the request has done what it had to.
fn expect(is_done: bool) -> Done {
    match is_done {
        true => Ok(()),
        false => Err("the name is taken, or was lost".into()),
    }
}
