//! Connection pools, as applications have them: those of r2d2.

use std::ops::RangeInclusive;

use r2d2::{ManageConnection, PooledConnection};

use crate::error::Error;

/// A pool of connections of type `C`.
pub(crate) type Pool<C> = r2d2::Pool<Connector<C>>;
/// A connection out of a pool, which goes back when it is dropped.
pub(crate) type Pooled<C> = PooledConnection<Connector<C>>;

/// Opens the connections of a pool.
pub(crate) struct Connector<C>(Box<dyn Fn() -> Result<C, Error> + Send + Sync>);

impl<C: Send + 'static> ManageConnection for Connector<C> {
    type Connection = C;
    type Error = Error;

    fn connect(&self) -> Result<C, Error> {
        (self.0)()
    }

    fn is_valid(&self, _connection: &mut C) -> Result<(), Error> {
        Ok(())
    }

    /// A comparison ends at the first connection that breaks.
    fn has_broken(&self, _connection: &mut C) -> bool {
        false
    }
}

/// Opens a pool of `size` connections: as many as its start now, and up to its end when they are needed.
pub(crate) fn open_pool<C: Send + 'static>(
    size: RangeInclusive<u32>,
    connect: impl Fn() -> Result<C, Error> + Send + Sync + 'static,
) -> Result<Pool<C>, Error> {
    let builder = r2d2::Pool::builder()
        .min_idle(Some(*size.start()))
        .max_size(*size.end())
        // A check would cost a round trip whenever a connection is taken.
        .test_on_check_out(false)
        // A thread that closes old connections would outlive the pool by half a minute.
        .idle_timeout(None)
        .max_lifetime(None);
    Ok(builder.build(Connector(Box::new(connect)))?)
}
