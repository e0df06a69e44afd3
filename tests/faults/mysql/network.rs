//! Sessions that the server keeps after the keeper has closed them.

use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, Released};
use lockkeeper_testkit::{Fault, MySqlKind, cases, until};

use super::Case;
use crate::common::{Keepers as _, cancel_after, start};

pub(super) const CASES: &[Case] = cases![
    own_half_open_session_is_not_busy,
    own_half_open_wait_is_not_busy,
];

/// The server granted the name to a connection that this keeper has closed, and has not noticed that.
fn own_half_open_session_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keys = "ttl=30s&response_timeout=500ms&connect_timeout=20s";
    let keeper = server.open_via(&proxy, keys);
    proxy.once(server.facts().lock_request, Fault::HalfOpen);
    let granted = keeper.try_lock("a").unwrap();
    let granted = granted.expect("the keeper ends its own former session");
    assert_eq!(granted.release().unwrap(), Released::Done);
    drop(keeper);
    server.assert_clean();
}

/// The server grants the name to a wait that this keeper has cancelled, ahead of its next one.
fn own_half_open_wait_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keeper = server.open_via(&proxy, "ttl=10m");
    let rival = server.open("");
    let held = rival.lock("a").unwrap();
    // An attempt, which comes before the wait, says it in another way.
    proxy.once("GET_LOCK('default:a', ", Fault::HalfOpen);
    cancel_after(&keeper, "a", AcquireOptions::new(), || {
        until("the waiter is queued", || server.queue_length("a") == 1);
    });
    thread::scope(|scope| {
        // Longer than the response timeout: before that, the answer of a slow server is that the rival has it.
        let next = scope.spawn(|| keeper.try_lock_for("a", Duration::from_secs(10)));
        until("both sessions wait", || server.queue_length("a") == 2);
        assert_eq!(held.release().unwrap(), Released::Done);
        match next.join().unwrap() {
            // It has ended its former session in time.
            Ok(Some(guard)) => drop(guard),
            Ok(None) => panic!("no other keeper holds it"),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    });
    // A slow server ends the former session at this attempt, and by itself in ten minutes.
    until("the keeper has ended its former session", || {
        keeper.try_lock("a").is_ok_and(|it| it.is_some())
    });
    drop((keeper, rival));
    server.assert_clean();
}
