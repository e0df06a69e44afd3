//! The reply to an attempt to acquire a name.

use redis::Value;

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
