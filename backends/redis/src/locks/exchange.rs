//! Calls that are sent together: one pipeline on one connection to a node, and an answer for each call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Failure, PooledConn, senseless, until_cancelled};
use redis::{Value, cmd};

use super::call::{Call, State, unknown};
use crate::connection::Connection;
use crate::topology::node::Node;
use crate::wire::failure::from_primary;
use crate::wire::scripts::{Script, is_no_script};

/// The interval at which the server checks whether the time of a WAIT is over.
const TICK: Duration = Duration::from_millis(100);

/// The way in which calls are sent to a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Owner,
    /// The node is taking over the slot, and replies only after `ASKING`.
    Next,
}

impl Way {
    /// Returns the number of commands for a call.
    fn commands(self) -> usize {
        match self {
            Self::Owner => 1,
            Self::Next => 2,
        }
    }
}

/// Runs the `calls` without an answer on a node, and sets the answer of each. A failure of the transport is
/// the answer of all calls without a reply. The calls go behind a release that was
/// `sent`, on its connection.
///
/// A batch with only attempts never uses the last of several connections, which renewals and releases
/// need.
///
/// A cancel closes the connection, and so ends the calls.
pub(super) fn run_on_node(
    node: &Node,
    calls: &mut [&mut Call<'_>],
    way: Way,
    sent: Option<PooledConn<Connection>>,
    until: HostInstant,
    cancel: Option<&CancelToken>,
) {
    let slot = match sent {
        Some(sent) => Ok(sent),
        None => node.checkout(until, calls.iter().all(|call| call.is_attempt()), cancel),
    };
    let work = |connection: &mut Connection, limit| {
        let close = connection.closer();
        until_cancelled(cancel, close, || {
            let began = node.clock.now();
            if let Err(refusal) = connection.check_grace(began) {
                let attempts = calls.iter_mut().filter(|call| call.is_attempt());
                for call in attempts.filter(|call| call.is_unanswered()) {
                    call.fail(Failure::Refused(refusal.clone()));
                }
            }
            let ran = exchange(node, connection, calls, way, limit);
            let ran = ran.and_then(|()| await_replicas(node, connection, calls, began, limit));
            calls.iter_mut().for_each(|call| call.end_run(ran.is_ok()));
            ran
        })
    };
    let ran = match slot {
        Ok(slot) => node.run_on(slot, until, cancel, work),
        Err(failure) => Err(failure),
    };
    if let Err(failure) = ran {
        let unanswered = calls.iter_mut().filter(|call| call.is_unanswered());
        unanswered.for_each(|call| call.fail(failure.clone()));
    }
    // The connection was replaced.
    for call in calls.iter_mut().filter(|call| call.is_sent()) {
        call.fail(Failure::Unanswered(node.connector.server.cut()));
    }
}

/// Sends the calls without an answer until each has a reply. It repeats a call if the server does not
/// have the script, or if the server's clock was not known.
fn exchange(
    node: &Node,
    connection: &mut Connection,
    calls: &mut [&mut Call<'_>],
    way: Way,
    limit: Duration,
) -> Result<(), Failure> {
    let began = node.clock.now();
    let mut missing: Vec<&Script> = Vec::new();
    loop {
        let now = node.clock.now();
        let left = limit.saturating_sub(now.saturating_since(began));
        let (mut commands, mut count) = (Vec::new(), 0);
        for call in calls.iter_mut().filter(|call| call.is_unanswered()) {
            if way == Way::Next {
                commands.extend(cmd("ASKING").get_packed_command());
            }
            let script = call.script();
            let at = missing.iter().position(|it| std::ptr::eq(*it, script));
            // One command loads the script for those behind it.
            let loads = at.map(|at| missing.swap_remove(at)).is_some();
            commands.extend(call.command(node, now, left, loads));
            count += way.commands();
        }
        let owes_release = connection.owes_release;
        if count == 0 && !owes_release {
            return Ok(());
        }
        let mut replies = Vec::with_capacity(count + 1);
        let mut result = connection.exchange_into(&mut replies, &commands, count, left);
        let mut replies = replies.into_iter();
        if owes_release && let Some(reply) = replies.next() {
            // Also if one of the replies behind it is missing.
            let taken = take_release(node, calls, reply);
            result = result.and(taken);
        }
        // The reply to ASKING comes first.
        let per_call = way.commands();
        let replies = replies.skip(per_call - 1).step_by(per_call);
        let asked = calls.iter_mut().filter(|call| call.is_unanswered());
        for (call, reply) in asked.zip(replies) {
            match from_primary(reply) {
                Err(failure) => result = Err(failure),
                Ok(reply) if !is_no_script(&reply) => {
                    if call.is_release() {
                        node.knows_release.store(true, Ordering::Relaxed);
                    }
                    call.take(reply, node);
                }
                Ok(_) if missing.iter().any(|it| std::ptr::eq(*it, call.script())) => {}
                Ok(_) => missing.push(call.script()),
            }
        }
        result?;
    }
}

/// Takes the reply to a release that was sent before.
fn take_release(node: &Node, calls: &mut [&mut Call<'_>], reply: Value) -> Result<(), Failure> {
    let reply = from_primary(reply)?;
    let is_known = !is_no_script(&reply);
    node.knows_release.store(is_known, Ordering::Relaxed);
    if let Some(call) = calls.iter_mut().find(|call| call.is_sent()) {
        match is_known {
            true => call.take(reply, node),
            // What follows on the connection came before the name is free, so this is repeated behind it.
            // The server has replied, so this is no outage.
            false => call.fail(Failure::Refused(Error::name_unavailable(
                "the server has forgotten the script that releases; it is sent again",
            ))),
        }
    }
    Ok(())
}

/// Waits until the replicas acknowledge grants and renewals. Releases grants that they do not
/// acknowledge.
fn await_replicas(
    node: &Node,
    connection: &mut Connection,
    calls: &mut [&mut Call<'_>],
    began: HostInstant,
    limit: Duration,
) -> Result<(), Failure> {
    if !calls.iter().any(|call| call.is_unacknowledged()) {
        return Ok(());
    }
    let left = || limit.saturating_sub(node.clock.now().saturating_since(began));
    let refusal = match acknowledged(node, connection, left()) {
        Ok(true) => return Ok(()),
        Ok(false) => None,
        Err(Failure::Refused(error)) => Some(error),
        // A release on a replica does not count: the new primary may have the grant.
        Err(failure) => return Err(failure),
    };
    let refusal = |what| {
        let refusal = refusal.clone();
        Failure::Refused(refusal.unwrap_or_else(|| few_replicas(node, what)))
    };
    let unacknowledged = calls.iter_mut().filter(|call| call.is_unacknowledged());
    let (mut granted, renewed): (Vec<_>, Vec<_>) =
        unacknowledged.partition(|call| call.is_of_new_lease());
    renewed
        .into_iter()
        .for_each(|call| call.fail(refusal("renewal")));
    let mut releases: Vec<_> = granted.iter().map(|call| call.give_back()).collect();
    let mut asked: Vec<_> = releases.iter_mut().collect();
    let given_back = exchange(node, connection, &mut asked, Way::Owner, left());
    let released = releases
        .into_iter()
        .map(|release| match (release.state, &given_back) {
            (State::Done(released), _) => released.map(drop),
            (_, Err(failure)) => Err(failure.clone()),
            (_, Ok(())) => Err(Failure::Unanswered(senseless())),
        });
    let released: Vec<_> = released.collect();
    for (call, released) in granted.iter_mut().zip(released) {
        call.fail(match released {
            Ok(()) => refusal("grant"),
            Err(failure) => unknown(failure.into_error()),
        });
    }
    given_back
}

/// Waits for the replicas within `limit`, on the connection that wrote.
fn acknowledged(
    node: &Node,
    connection: &mut Connection,
    limit: Duration,
) -> Result<bool, Failure> {
    let wanted = node.options.replicas;
    // Zero would be an endless wait. A quarter of the time is left for the reply's way.
    let longest = (limit.saturating_sub(TICK) * 3 / 4).max(Duration::from_millis(1));
    let mut wait = cmd("WAIT");
    wait.arg(wanted).arg(longest.as_millis());
    let came = connection.run(&wait, limit)?;
    Ok(matches!(came, Value::Int(came) if came >= i64::from(wanted)))
}

fn few_replicas(node: &Node, what: &str) -> Error {
    let wanted = node.options.replicas;
    let few = match wanted {
        1 => "no replica".to_owned(),
        wanted => format!("fewer than {wanted} replicas"),
    };
    let then = match what {
        "grant" => ", so the lock was released again",
        _ => "",
    };
    let text = format!("{few} acknowledged the {what} in time{then}; see `replicas`");
    Error::new(ErrorKind::Unavailable, text)
}
