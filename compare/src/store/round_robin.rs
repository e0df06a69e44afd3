//! A few connections that many threads share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// One for each of 10,000 threads would be too many open files, and with a single one the store
/// would never see two writers.
const CONNECTIONS: usize = 4;

/// Connections that the threads use in turn, for a statement or a transaction at a time.
pub(crate) struct RoundRobin<C> {
    connections: Vec<Mutex<C>>,
    next: AtomicUsize,
}

impl<C> RoundRobin<C> {
    pub(crate) fn new(connect: impl Fn() -> Result<C, Error>) -> Result<Self, Error> {
        let connections = (0..CONNECTIONS).map(|_| connect().map(Mutex::new));
        Ok(Self {
            connections: connections.collect::<Result<_, _>>()?,
            next: AtomicUsize::new(0),
        })
    }

    pub(crate) fn with<T, E: Into<Error>>(
        &self,
        statement: impl FnOnce(&mut C) -> Result<T, E>,
    ) -> Result<T, Error> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let connection = self.connections.get(next);
        let connection =
            connection.ok_or_else(|| Error::failed("there is no connection to the state"))?;
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        statement(&mut connection).map_err(Into::into)
    }
}
