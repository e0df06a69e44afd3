//! Connecting to a host that may have several addresses.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
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

/// Connects to one of the addresses of `host` within `limit`. Each address gets an equal share of the
/// time that is left. Finding the addresses takes as long as the system's resolver does.
///
/// # Errors
/// The error of the last address, or the first error of an address that could be reached.
pub fn connect_any<T>(
    server: &Server,
    (host, port): (&str, u16),
    limit: Duration,
    mut connect: impl FnMut(SocketAddr, Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    let found = (host, port).to_socket_addrs();
    let mut addresses = found.map_err(|error| server.not_connected(error))?;
    let mut failed: Option<Error> = None;
    while let Some(address) = addresses.next() {
        let untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let share = limit.saturating_sub(began.elapsed()) / untried.saturating_add(1);
        if share.is_zero() {
            break;
        }
        match connect(address, share) {
            Ok(connected) => return Ok(connected),
            Err(error) => {
                let is_news = failed.as_ref().is_none_or(Error::is_unreachable);
                failed = if is_news { Some(error) } else { failed };
            }
        }
    }
    Err(failed.unwrap_or_else(|| server.no_time_to_connect()))
}

/// Opens a socket to one of the addresses of a host: see [`connect_any`].
pub(crate) fn connect_tcp(
    server: &Server,
    host: (&str, u16),
    limit: Duration,
) -> Result<TcpStream, Error> {
    connect_any(server, host, limit, |address, share| {
        let connected = TcpStream::connect_timeout(&address, share);
        let prepared = connected.and_then(|socket| prepare(&socket).map(|()| socket));
        prepared.map_err(|error| server.not_connected(error))
    })
}

fn prepare(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Endpoint;
    use lockkeeper_core::ErrorKind;
    use std::net::TcpListener;

    fn server() -> Server {
        Server::new("Test", &Endpoint::tcp("127.0.0.1", 1))
    }

    /// `localhost` may have one address or two, and the port answers on one of them only.
    #[test]
    fn address_that_refuses_is_followed_by_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = connect_tcp(&server(), ("localhost", port), Duration::from_secs(60));
        assert_eq!(socket.unwrap().peer_addr().unwrap().port(), port);
    }

    #[test]
    fn time_is_shared_and_no_address_is_tried_without_any() {
        let limit = Duration::from_secs(60);
        let host = ("127.0.0.1", 1);
        let share = connect_any(&server(), host, limit, |_, share| Ok(share)).unwrap();
        assert!(share <= limit && share > limit / 2, "{share:?}");
        let none = connect_any(&server(), host, Duration::ZERO, |_, _| Ok(()));
        assert!(none.unwrap_err().is_unreachable());
    }

    #[test]
    fn error_of_a_server_outlasts_that_of_an_address_that_is_gone() {
        let denied = || Error::new(ErrorKind::PermissionDenied, "");
        for first_is_denied in [true, false] {
            let mut tried = 0;
            let error = connect_any(&server(), ("localhost", 1), Duration::MAX, |_, _| {
                tried += 1;
                let is_denied = (tried == 1) == first_is_denied;
                Err::<(), _>(if is_denied {
                    denied()
                } else {
                    server().no_time_to_connect()
                })
            });
            // With one address there is the first error only.
            if tried > 1 || first_is_denied {
                assert_eq!(error.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
    }
}
