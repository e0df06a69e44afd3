//! What the listening connection asks the server for, and the messages that come.

use std::time::Duration;

use lockkeeper_remote::Failure;
use redis::{PushKind, Value, pipe};

use crate::connection::Connection;
use crate::failure::{accepted_by_primary, parse};

/// A message to the listening connection.
pub(crate) enum Message {
    /// A name was released to a waiter: the waiter and the lock's key.
    Wake(String),
    /// Leases may have ended: the server was flushed, or an operator took a lock away.
    LeasesEnded,
}

/// Subscribes a new connection to two channels, and asks for a notice of FLUSHALL and FLUSHDB.
///
/// CLIENT TRACKING sends that notice to a connection that speaks RESP3. It costs nothing while no
/// lock is flushed, since it is about the keys that this connection reads, and it reads none. A
/// server that refuses it, to a user without the permission or for lack of RESP3, is listened to all the
/// same, without the notice.
pub(crate) fn subscribe(
    connection: &mut Connection,
    channels: &[String; 2],
    limit: Duration,
) -> Result<(), Failure> {
    let mut commands = pipe();
    commands.cmd("HELLO").arg(3);
    commands.cmd("CLIENT").arg("TRACKING").arg("ON");
    for channel in channels {
        commands.cmd("SUBSCRIBE").arg(channel);
    }
    let answers = connection.exchange(&commands.get_packed_pipeline(), 4, limit)?;
    let mut subscribed = answers.into_iter().skip(2);
    subscribed.try_for_each(|answer| accepted_by_primary(answer).map(drop))
}

/// Reads what came: in the form of RESP3, or of RESP2. `None` for what needs no action, such as the
/// reply to a PING.
pub(crate) fn read(came: Value, ended_channel: &str) -> Option<Message> {
    let (channel, payload) = match came {
        Value::Push {
            kind: PushKind::Invalidate,
            ..
        } => return Some(Message::LeasesEnded),
        Value::Push {
            kind: PushKind::Message,
            data,
        } => parse::<(String, String)>(Value::Array(data)).ok()?,
        came => {
            let (kind, channel, payload): (String, String, String) = parse(came).ok()?;
            (kind == "message").then_some((channel, payload))?
        }
    };
    Some(match channel == ended_channel {
        true => Message::LeasesEnded,
        false => Message::Wake(payload),
    })
}
