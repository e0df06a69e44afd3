//! Waiting for a permit.
//!
//! Sessions that wait do so for the semaphore's bell in the server, first come, first served. The first of them holds
//! the bell, and pauses while all permits are in use: a session that releases a permit finds its number there, and ends
//! its pause.

use std::slice;
use std::time::Duration;

use lockkeeper_core::{ErrorKind, Mode};

use crate::failure::Failure;

use super::connection::{SessionConnection, SessionName};
use super::requests::{Attempt, Attempted};

/// How often a statement is repeated that was ended by sessions that released permits.
const REPEATS: u32 = 32;

/// Waits for a permit in the server for `wait`, first come, first served; a reply may take `grace` longer.
/// `pause` is called before each pause, and returns how long it may be, or `None` if the wait is over.
///
/// After a failure, the connection may hold names of the semaphore.
pub(crate) fn wait_for_permit<C: SessionConnection>(
    connection: &mut C,
    gate: &C::Name,
    limit: u32,
    wait: Duration,
    grace: Duration,
    mut pause: impl FnMut() -> Option<Duration>,
) -> Attempted<C::Name> {
    let (name, mode) = (gate.bell(), Mode::Exclusive);
    let bell = Attempt { name, mode };
    if connection.wait(&bell, wait, grace)?.is_none() {
        return Ok(None);
    }
    let taken = loop {
        let Some(span) = pause() else {
            break Ok(None);
        };
        connection.set_limit(span + grace);
        let taken = connection.try_permit_or_pause(gate, limit, span);
        connection.set_limit(grace);
        match taken {
            Ok(None) => {}
            // The end of the pause.
            Err(Failure::Refused(_)) => {
                let (name, mode) = (gate.clone(), Mode::Permit { limit });
                let (wanted, keep) = (Attempt { name, mode }, slice::from_ref(&bell.name));
                repeat(connection, |it| it.undo(&wanted, keep))?;
            }
            Err(failure @ (Failure::Closed(_) | Failure::Unanswered(_))) => return Err(failure),
            taken => break taken,
        }
    };
    repeat(connection, |it| it.leave_gate(gate))?;
    taken
}

/// Repeats a statement that was ended by sessions that released a permit: several may do so at once.
///
/// # Errors
/// Those of the statement.
pub fn repeat<C, T>(
    connection: &mut C,
    mut statement: impl FnMut(&mut C) -> Result<T, Failure>,
) -> Result<T, Failure> {
    for _ in 0..REPEATS {
        match statement(connection) {
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::Unavailable => {}
            result => return result,
        }
    }
    statement(connection)
}
