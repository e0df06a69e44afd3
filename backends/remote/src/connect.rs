//! Connecting to a host that may have several addresses.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use lockkeeper_core::Error;

use crate::failure::Server;

/// A connection is probed after so long without traffic, so that a dead network is noticed after some
/// 20 s.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The time between two probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A connection ends after so many probes without a reply.
pub const KEEPALIVE_PROBES: u32 = 2;

/// Connects to one of several addresses, such as those of a host, within `limit`. Each address gets an
/// equal share of the time that is left. Finding the addresses takes as long as the system's resolver
/// does.
///
/// # Errors
/// The error of the last address, or the first error of an address that could be reached.
pub fn connect_any<T>(
    server: &Server,
    addresses: impl ToSocketAddrs,
    limit: Duration,
    mut connect: impl FnMut(SocketAddr, Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    let found = addresses.to_socket_addrs();
    let found = found.map_err(|error| server.not_connected(error))?;
    let mut addresses = found.collect::<Vec<_>>().into_iter();
    let mut failed: Option<Error> = None;
    while let Some(address) = addresses.next() {
        let untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let share = limit.saturating_sub(began.elapsed()) / untried.saturating_add(1);
        if share.is_zero() {
            break;
        }
        match connect(address, share) {
            Ok(connected) => return Ok(connected),
            Err(error) if failed.as_ref().is_none_or(Error::is_unreachable) => failed = Some(error),
            Err(_) => {}
        }
    }
    Err(failed.unwrap_or_else(|| server.no_time_to_connect()))
}
