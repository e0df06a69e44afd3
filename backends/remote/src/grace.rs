//! Servers that were just started, or took over: they do not know who holds what.

use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, HostInstant};

use crate::failure::Server;

/// The time at which a server that was started not long ago grants again.
///
/// Each connection has one from its opening, since a restart breaks all connections. The connection
/// checks it before each request that can be granted a name. Renewals and releases need no check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartGrace {
    grace: Duration,
    until: HostInstant,
}

impl RestartGrace {
    /// `grace` is [`RemoteOptions::restart_grace`](crate::RemoteOptions::restart_grace). The server has
    /// been up for at least `uptime` at `now`: read the clock after the server's answer.
    pub fn new(grace: Duration, uptime: Duration, now: HostInstant) -> Self {
        let until = now + grace.saturating_sub(uptime);
        Self { grace, until }
    }

    /// Refuses a request while the server grants nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], which says for how long still and why.
    pub fn check(&self, server: &Server, now: HostInstant) -> Result<(), Error> {
        let left = self.until.saturating_since(now);
        if left.is_zero() {
            return Ok(());
        }
        let grace = self.grace;
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{server} was started or took over less than {grace:?} ago and grants nothing for another {left:.1?} (`restart_grace`), since holders from before that may not know of their loss; wait longer, or try again then"
            ),
        ))
    }
}
