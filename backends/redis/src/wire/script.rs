//! A script, the command that runs it in the server, and what it replies to an attempt.

use redis::{Value, cmd};

pub(crate) struct Script {
    code: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }

    /// Returns the command that runs the script. If it does not load the script, the server must have it.
    pub(crate) fn command(&self, loads: bool, keys: &[&str], args: &[&str]) -> Vec<u8> {
        let (verb, script) = match loads {
            true => ("EVAL", &self.code),
            false => ("EVALSHA", &self.sha),
        };
        let mut command = cmd(verb);
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command.get_packed_command()
    }
}

/// What [`ACQUIRE`](crate::wire::scripts::ACQUIRE) and [`PROPOSE`](crate::wire::scripts::PROPOSE) reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A lease in this slot, with an epoch of this time in microseconds of the server's clock.
    Granted { minted: i64, slot: i64 },
    /// The milliseconds until the first of the leases ends, and the number of waiters before this one.
    Busy { ends: i64, before: i64 },
    /// Permits of this other limit are held.
    OtherLimit(i64),
    /// The proposed epoch is not larger than the last one, which has this time in microseconds.
    EpochTooSmall(i64),
    /// The request arrived after the latest time for a grant, at this time in microseconds of the server's clock.
    Late(i64),
}

impl Reply {
    /// Reads a reply; `None` if it is an error, or not the script's.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let items = match reply {
            Value::Int(minted) => {
                let minted = *minted;
                return Some(Reply::Granted { minted, slot: 0 });
            }
            Value::Array(items) => &**items,
            _ => return None,
        };
        Some(match items {
            [Value::Int(minted), Value::Int(slot)] => {
                let (minted, slot) = (*minted, *slot);
                Reply::Granted { minted, slot }
            }
            [Value::BulkString(tag), Value::Int(ends), Value::Int(before)] if tag == b"busy" => {
                let (ends, before) = (*ends, *before);
                Reply::Busy { ends, before }
            }
            [Value::BulkString(tag), Value::Int(limit)] if tag == b"limit" => {
                Reply::OtherLimit(*limit)
            }
            [Value::BulkString(tag), Value::Int(last)] if tag == b"small" => {
                Reply::EpochTooSmall(*last)
            }
            [Value::BulkString(tag), Value::Int(now)] if tag == b"late" => Reply::Late(*now),
            _ => return None,
        })
    }
}

/// Returns whether the server does not have the script: it is new there, or was forgotten by SCRIPT FLUSH
/// or a restart.
pub(crate) fn is_no_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}
