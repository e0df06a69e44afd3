//! A grant, and its text: the epoch, the mode and the owner for the scripts, and the holder for people.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{AcquireRequest, Holder, LeaseId, Mode, host_name, process_label};

/// What is before the label at the end of a lease.
const LABEL: &str = " label=";

/// A grant of a [`RedisProvider`](crate::RedisProvider).
#[derive(Debug)]
pub struct RedisLease {
    pub(crate) key: String,
    /// What the server keeps: see [`lease`].
    pub(crate) text: String,
    /// The part of the store that kept the key when the lease was asked for.
    pub(crate) part: usize,
}

/// Returns a ttl for the server, which counts in signed numbers from 1970. Rounded up, so that no lease is
/// shorter than requested.
pub(crate) fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).min(1 << 52)
}

/// Returns a mode as the scripts know it.
pub(crate) fn code(mode: Mode) -> Cow<'static, str> {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { limit } => format!("/{limit}").into(),
    }
}

/// Returns the mode and the owner of a request. It is the same on every thread that sends the request or takes back what
/// that was granted.
pub(crate) fn owner(request: &AcquireRequest<'_>) -> String {
    let host = host_name();
    let owner = request.owner();
    let since = owner.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = format!(
        "{} {} host={host} pid={} since={}",
        code(request.mode()),
        owner.lease_id(),
        owner.pid,
        since.as_millis()
    );
    match process_label() {
        Some(label) => text + LABEL + label,
        None => text,
    }
}

/// Returns the lease that this [`owner`] was granted in this slot, with an epoch of this time in microseconds of
/// the server's clock. Scripts write `SECONDS.MICROSECONDS`, without leading zeros, and no slot 0.
pub(crate) fn lease(minted: i64, slot: u32, owner: &str) -> String {
    let (seconds, micros) = (minted / 1_000_000, minted % 1_000_000);
    match slot {
        0 => format!("{seconds}.{micros} {owner}"),
        slot => format!("{seconds}.{micros} {slot}{owner}"),
    }
}

/// Returns the part of an exclusive lease that stays the same when it is resumed.
pub(crate) fn lasting_part(request: &AcquireRequest<'_>) -> String {
    format!(" x {} host=", request.owner().lease_id())
}

/// Reads what identifies a lease; `None` if another program wrote it.
pub(crate) fn id(lease: &str) -> Option<LeaseId> {
    LeaseId::parse(lease.split(' ').nth(2)?)
}

/// Reads the mode and the slot of a lease.
pub(crate) fn mode(lease: &str) -> (Mode, Option<u32>) {
    let permit = || {
        let (slot, limit) = lease.split(' ').nth(1)?.split_once('/')?;
        let slot = match slot {
            "" => 0,
            slot => slot.parse().ok()?,
        };
        let limit = limit.parse().ok()?;
        Some((Mode::Permit { limit }, Some(slot)))
    };
    match lease.split(' ').nth(1) {
        Some("s") => (Mode::Shared, None),
        _ => permit().unwrap_or((Mode::Exclusive, None)),
    }
}

/// Reads the time of the epoch of a lease; `None` if another program wrote it.
pub(crate) fn minted(lease: &str) -> Option<i64> {
    let (time, _) = lease.split_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let seconds: i64 = seconds.parse().ok()?;
    seconds
        .checked_mul(1_000_000)?
        .checked_add(micros.parse().ok()?)
}

/// Reads the holder of a lease; empty if another program wrote it.
pub(crate) fn holder(lease: &str) -> Holder {
    let read = || {
        let (_, rest) = lease.split_once(" host=")?;
        let (host, rest) = rest.split_once(" pid=")?;
        let (pid, since) = rest.split_once(" since=")?;
        let (since, label) = match since.split_once(LABEL) {
            Some((since, label)) => (since, Some(label.to_owned())),
            None => (since, None),
        };
        let since = since.parse().ok().map(Duration::from_millis);
        Some(Holder {
            host: Some(host.to_owned()),
            pid: pid.parse().ok(),
            since: since.and_then(|since| UNIX_EPOCH.checked_add(since)),
            label,
            ..Holder::default()
        })
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_read_as_it_was_written() {
        let seen = holder("00ff-7 host=web-1 pid=42 since=1500");
        assert_eq!(seen.host.as_deref(), Some("web-1"));
        assert_eq!((seen.pid, seen.label), (Some(42), None));
        let labelled = holder("00ff-7 host=web-1 pid=42 since=1500 label=a label=b");
        assert_eq!(labelled.label.as_deref(), Some("a label=b"));
        assert_eq!(labelled.since, seen.since);
        assert_eq!(seen.since, Some(UNIX_EPOCH + Duration::from_millis(1500)));
        assert_eq!(holder("the key of another program"), Holder::default());
    }

    #[test]
    fn epoch_mode_and_slot_are_read_as_they_were_written() {
        let owner = "00ff-7 host=web-1 pid=42 since=1500";
        let permit = Mode::Permit { limit: 65_535 };
        for time in [1, 1_000_000, 1_800_000_000_000_005, 1_800_000_000_999_999] {
            for (of, slot) in [
                (Mode::Exclusive, None),
                (Mode::Shared, None),
                (permit, Some(0)),
                (permit, Some(12)),
            ] {
                let owner = format!("{} {owner}", code(of));
                let written = lease(time, slot.unwrap_or(0), &owner);
                assert_eq!(minted(&written), Some(time));
                assert_eq!(mode(&written), (of, slot));
                assert_eq!(holder(&written).pid, Some(42));
                assert!(written.ends_with(&owner));
            }
        }
        assert_eq!(lease(7_000_005, 0, "x y"), "7.5 x y");
        assert_eq!(lease(7_000_005, 3, "/5 y"), "7.5 3/5 y");
        assert_eq!(minted(owner), None);
        assert_eq!(mode(owner), (Mode::Exclusive, None));
    }
}
