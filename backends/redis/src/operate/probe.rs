//! The tries at opening: whether the user may run every command that a lock needs.

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use redis::{Value, pipe};

use crate::connection::Connection;
use crate::locks::Locks;
use crate::topology::node::Node;
use crate::wire::failure::{accepted, parse, refused_command};
use crate::wire::scripts::{PROBE, is_no_script};

/// Returns the end of a node's share of the time, where so many have to share what is left.
pub(super) fn share_of(clock: &dyn Clock, end: HostInstant, untried: usize) -> HostInstant {
    let untried = u32::try_from(untried).unwrap_or(u32::MAX).max(1);
    let now = clock.now();
    now + end.saturating_since(now) / untried
}

impl Locks {
    /// Tries every command that a lock needs on each node, within the connect timeout. A node that does not reply is an
    /// error only if none does.
    pub(crate) fn probe(&self) -> Result<(), Error> {
        let end = self.clock.now() + self.options.remote.connect_timeout;
        let keys = self.keys.probes();
        let mut failed = None;
        let mut replied = false;
        let nodes = self.topology.nodes(end)?;
        for (node, untried) in nodes.iter().zip((1..=nodes.len()).rev()) {
            // A node that hangs leaves half of the time to the others.
            let until = share_of(&*self.clock, end, untried.min(2));
            // A primary of so few slots that it has no bucket keeps no lock.
            let Some(key) = keys.iter().find(|key| !node.has_lost(key, until, None)) else {
                continue;
            };
            let probed = self.probe_at(node, key, until);
            if node.map.is_some() {
                // The program may never need it.
                node.close_idle();
            }
            match probed {
                Ok(()) => replied = true,
                Err(error) if error.kind() == ErrorKind::Unavailable => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) if !replied => Err(error),
            None if !replied => Err(senseless()),
            _ => Ok(()),
        }
    }

    /// Runs every command that a lock needs on a key that no lock has.
    fn probe_at(&self, node: &Node, key: &str, until: HostInstant) -> Result<(), Error> {
        let (waiter, epoch_key) = (node.listener.probe(), self.keys.epoch(key));
        let args = [waiter.as_str(), &epoch_key];
        let keys: &[&str] = match self.keys.only_epoch() {
            Some(_) => &[key],
            None => &[key, &epoch_key],
        };
        let mut subscribe = pipe();
        for channel in node.listener.channels() {
            subscribe.cmd("SUBSCRIBE").arg(&channel);
            subscribe.cmd("UNSUBSCRIBE").arg(&channel);
        }
        let subscribe = subscribe.get_packed_pipeline();
        let try_all = |connection: &mut Connection, limit| {
            let asked_at = self.clock.now();
            let answer = connection.ask(&PROBE.command(false, keys, &args), limit)?;
            if !is_no_script(&answer) {
                node.accepted(answer)?;
            }
            let answer = connection.ask(&PROBE.command(true, keys, &args), limit);
            match answer.and_then(|answer| node.accepted(answer))? {
                Value::Int(now) => node.note_time(now, asked_at),
                failed => {
                    let (command, said): (String, String) = parse(failed)?;
                    return Err(Failure::Refused(refused_command(&command, &said)));
                }
            }
            let answers = connection.exchange(&subscribe, 4, limit)?;
            let mut answers = answers.into_iter();
            answers.try_for_each(|answer| accepted(answer).map(drop))
        };
        let tried = node.with_connection(until, |connection, limit| {
            let tried = try_all(connection, limit);
            tried.map_err(|failure| Failure::Refused(connection.nothing_granted(failure)))
        });
        tried.map_err(Failure::into_error)
    }
}
