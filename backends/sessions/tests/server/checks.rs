//! What the suites of MySQL and PostgreSQL check alike. Each of them includes this file.

use std::time::{Duration, Instant};

use lockkeeper_core::{Clock as _, Error, ErrorKind, HostInstant, LockKeeper, SystemClock};
use lockkeeper_testkit::until;

use crate::store::try_open;

/// A limit far longer than anything here takes.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The time-outs of a keeper: the defaults of 1 s and 2 s are too short for a busy machine.
pub(crate) const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// Passwords that no error may contain.
const SECRETS: [&str; 2] = ["s3cret", "open-sesame"];

/// Adds [`REPLY_LIMIT`] as the time-outs that a URL does not have.
pub(crate) fn with_timeouts(url: &str) -> String {
    lockkeeper_testkit::with_timeouts(url, REPLY_LIMIT)
}

/// Returns a deadline for what an operator asks.
pub(crate) fn soon() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

/// Checks that a store is not opened, and that the error says why.
#[track_caller]
pub(crate) fn refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let began = Instant::now();
    let opened = try_open(&with_timeouts(url));
    // Opening that takes this long waits for something else.
    assert!(began.elapsed() < WAIT_LIMIT, "{:?}", began.elapsed());
    is_refused(opened, kind, says);
}

/// Checks that the error is of this kind, and contains all words and no secret.
#[track_caller]
pub(crate) fn is_refused<T>(result: Result<T, Error>, kind: ErrorKind, says: &[&str]) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
    let text = format!("{error:?}");
    for word in says {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
    assert!(!SECRETS.iter().any(|it| text.contains(it)), "{text}");
}

/// Waits for the lock `a`, which another keeper holds. On a busy machine, a wait may be short of time for its last reply.
#[track_caller]
pub(crate) fn waits_in_vain(keeper: &LockKeeper) {
    until("a wait ends as busy", || {
        match keeper.try_lock_for("a", Duration::from_secs(1)) {
            Ok(granted) => {
                assert!(granted.is_none(), "{granted:?}");
                true
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                false
            }
        }
    });
}
