//! Connection pools, as applications have them: those of r2d2.
//!
//! A pool waits at its drop, 1 s at most, for a thread of r2d2 that still connects. Its connections would count for
//! the next row.

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use r2d2::{ManageConnection, PooledConnection};

use crate::error::Error;

/// How long a thread waits for a connection: far longer than a queue of single statements takes.
pub(crate) const POOL_TIMEOUT: Duration = Duration::from_secs(60);
/// The size of a pool for the state. A connection for each of 10,000 threads would be too many.
/// With a single connection, the store would never see two writers.
pub(crate) const FEW: RangeInclusive<u32> = 4..=4;
/// The size of an application's pool, as HikariCP and r2d2 have it by default.
pub(crate) const APPLICATION: RangeInclusive<u32> = 10..=10;
/// How long a pool that is dropped waits for a thread that still connects.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A pool of connections of type `C`, which are closed when it is dropped.
pub(crate) struct Pool<C: Send + 'static> {
    connections: r2d2::Pool<Connector<C>>,
    /// Dropped after the connections.
    _closed: Closed,
}

/// A connection out of a pool, which goes back when it is dropped.
pub(crate) type Pooled<C> = PooledConnection<Connector<C>>;

impl<C: Send + 'static> Pool<C> {
    /// Opens a pool of `size` connections: as many as its start now, and up to its end when they are
    /// needed.
    pub(crate) fn open(
        size: RangeInclusive<u32>,
        connect: impl Fn() -> Result<C, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (open, closed) = bounded(0);
        let builder = r2d2::Pool::builder()
            .min_idle(Some(*size.start()))
            .max_size(*size.end())
            // A check would cost a round trip whenever a connection is taken.
            .test_on_check_out(false)
            // A thread that closes old connections would outlive the pool by half a minute.
            .idle_timeout(None)
            .max_lifetime(None);
        let connect = Box::new(connect);
        Ok(Self {
            connections: builder.build(Connector {
                connect,
                _open: open,
            })?,
            _closed: Closed(closed),
        })
    }

    /// Takes a connection; the error is the one that the application gets.
    pub(crate) fn get(&self, timeout: Duration) -> Result<Pooled<C>, Error> {
        Ok(self.connections.get_timeout(timeout)?)
    }

    /// Returns how many connections are open.
    pub(crate) fn open_connections(&self) -> u32 {
        self.connections.state().connections
    }
}

/// Waits in its drop until the pool is gone. A thread of r2d2 that still connects keeps the pool
/// alive, and its connections would count for the next row.
struct Closed(Receiver<Infallible>);

impl Drop for Closed {
    fn drop(&mut self) {
        let _ = self.0.recv_timeout(CLOSE_TIMEOUT);
    }
}

/// Opens the connections of a pool.
pub(crate) struct Connector<C> {
    connect: Box<dyn Fn() -> Result<C, Error> + Send + Sync>,
    /// Dropped with the pool.
    _open: Sender<Infallible>,
}

impl<C: Send + 'static> ManageConnection for Connector<C> {
    type Connection = C;
    type Error = Error;

    fn connect(&self) -> Result<C, Error> {
        (self.connect)()
    }

    fn is_valid(&self, _connection: &mut C) -> Result<(), Error> {
        Ok(())
    }

    /// A comparison ends at the first connection that breaks.
    fn has_broken(&self, _connection: &mut C) -> bool {
        false
    }
}
