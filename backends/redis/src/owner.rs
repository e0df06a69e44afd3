//! The value of a lock's key: the epoch and the owner for the scripts, and the holder for people.

use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{AcquireRequest, Holder};

/// Returns the owner of a request.
pub(crate) fn owner(request: &AcquireRequest<'_>) -> String {
    static HOST: OnceLock<String> = OnceLock::new();
    let host = HOST.get_or_init(host);
    let owner = request.owner();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let since = owner.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(
        "{:016x}-{} host={host} pid={} thread={thread} since={}",
        owner.nonce,
        owner.request,
        owner.pid,
        since.as_millis()
    )
}

/// Returns what the lock's key holds when this owner was granted it with an epoch of this time, in
/// microseconds of the server's clock. Scripts write `SECONDS.MICROSECONDS`, without leading zeros.
pub(crate) fn held_by(minted: i64, owner: &str) -> String {
    format!("{}.{} {owner}", minted / 1_000_000, minted % 1_000_000)
}

/// Reads the time of the epoch from what a lock's key holds; `None` if an earlier version or another
/// program wrote the key.
pub(crate) fn minted(held_by: &str) -> Option<i64> {
    let (time, _) = held_by.split_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let seconds: i64 = seconds.parse().ok()?;
    seconds
        .checked_mul(1_000_000)?
        .checked_add(micros.parse().ok()?)
}

#[cfg(unix)]
fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".to_owned())
}

/// Reads the holder from an [`owner`]; empty if another program wrote the key.
pub(crate) fn holder(owner: &str) -> Holder {
    let read = || {
        let (_, rest) = owner.split_once(" host=")?;
        let (host, rest) = rest.split_once(" pid=")?;
        let (pid, rest) = rest.split_once(" thread=")?;
        // A thread's name may contain any text.
        let (thread, since) = rest.rsplit_once(" since=")?;
        let since = since.parse().ok().map(Duration::from_millis);
        Some(Holder {
            host: Some(host.to_owned()),
            pid: pid.parse().ok(),
            thread: Some(thread.to_owned()),
            since: since.and_then(|since| UNIX_EPOCH.checked_add(since)),
            session: None,
        })
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_read_as_it_was_written() {
        let seen = holder("00ff-7 host=web-1 pid=42 thread=a pid=1 since=2 since=1500");
        assert_eq!(seen.host.as_deref(), Some("web-1"));
        assert_eq!(seen.pid, Some(42));
        assert_eq!(seen.thread.as_deref(), Some("a pid=1 since=2"));
        assert_eq!(seen.since, Some(UNIX_EPOCH + Duration::from_millis(1500)));
        assert_eq!(holder("the key of another program"), Holder::default());
    }

    #[test]
    fn epoch_is_read_as_it_was_written() {
        let owner = "00ff-7 host=web-1 pid=42 thread=1.2 since=1500";
        for time in [1, 1_000_000, 1_800_000_000_000_005, 1_800_000_000_999_999] {
            let held = held_by(time, owner);
            assert_eq!(minted(&held), Some(time));
            assert_eq!(holder(&held).pid, Some(42));
        }
        assert_eq!(held_by(7_000_005, "x"), "7.5 x");
        assert_eq!(minted(owner), None);
    }
}
