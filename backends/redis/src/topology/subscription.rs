//! What the listening connection asks the server for, and the messages that come.

use std::time::Duration;

use lockkeeper_remote::Failure;
use redis::{PushKind, ServerError, Value, pipe};

use crate::connection::Connection;
use crate::wire::failure::{accepted_by_primary, parse};

/// A message to the listening connection.
pub(crate) enum Message {
    /// A name was released to a waiter: the waiter and the lock's key.
    Wake(String),
    /// Leases may have ended: the server was flushed, or an operator took a lock away.
    LeasesEnded,
}

/// Asks for a notice of FLUSHALL and FLUSHDB on this connection. Returns the server's refusal, to a user
/// without the permission or for lack of RESP3, in which alone the notice comes.
///
/// It costs the server nothing per lock: CLIENT TRACKING is about the keys that this connection reads,
/// and it reads none. But a flush is told to all such connections.
pub(crate) fn ask_for_flush_notice(
    connection: &mut Connection,
    limit: Duration,
) -> Result<Option<ServerError>, Failure> {
    let mut commands = pipe();
    commands.cmd("HELLO").arg(3);
    commands.cmd("CLIENT").arg("TRACKING").arg("ON");
    let answers = connection.exchange(&commands.get_packed_pipeline(), 2, limit)?;
    let refusal = answers.into_iter().find_map(|answer| match answer {
        Value::ServerError(error) => Some(error),
        _ => None,
    });
    Ok(refusal)
}

/// Subscribes to channels of a primary.
pub(crate) fn subscribe(
    connection: &mut Connection,
    channels: &[String],
    limit: Duration,
) -> Result<(), Failure> {
    let mut commands = pipe();
    for channel in channels {
        commands.cmd("SUBSCRIBE").arg(channel);
    }
    let packed = commands.get_packed_pipeline();
    let answers = connection.exchange(&packed, channels.len(), limit)?;
    let mut answers = answers.into_iter();
    answers.try_for_each(|answer| accepted_by_primary(answer).map(drop))
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
