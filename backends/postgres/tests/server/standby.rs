//! A streaming standby that takes over from its primary.

use std::thread;

use libtest_mimic::Trial;
use lockkeeper_core::ErrorKind;
use lockkeeper_testkit::{PostgresKind, Proxy, until};

use crate::store::{open, start_own, trial, try_open};

/// `scripts/servers` unpacks PostgreSQL 18 without pg_basebackup.
const KIND: PostgresKind = PostgresKind::Postgres15;

pub(crate) fn trials() -> [Trial; 1] {
    [trial(
        "standby::promoted_standby_grants_larger_tokens",
        || KIND.ignored(),
        promoted_standby_grants_larger_tokens,
    )]
}

/// The address leads to the primary, and then to the standby.
fn promoted_standby_grants_larger_tokens() {
    let primary = start_own(KIND);
    let standby = primary.standby().unwrap();
    let error = try_open(&standby.url()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    let address = Proxy::new(primary.addr()).unwrap();
    let url = format!("{}?wait=60s", primary.url_via(address.addr()));
    let (holder, waiter) = (open(&primary, ""), try_open(&url).unwrap());
    let held = holder.lock("a").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").unwrap().token());
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        until("the waiter waits on the primary", || {
            primary.value(waits).unwrap() == "1"
        });
        address.lead_to(standby.addr());
        primary.kill();
        standby.execute("SELECT pg_promote()").unwrap();
        assert!(waiting.join().unwrap() > held.token());
    });
}
