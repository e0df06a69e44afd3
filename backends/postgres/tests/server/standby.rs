//! A streaming standby that takes over from its primary.

use std::thread;

use libtest_mimic::Trial;
use lockkeeper_core::ErrorKind;
use lockkeeper_testkit::{PostgresKind, Proxy, until};

use crate::checks::with_timeouts;
use crate::store::{open, start_own, trial, try_open};

/// `scripts/servers` unpacks PostgreSQL 18 without pg_basebackup.
const KIND: PostgresKind = PostgresKind::Postgres15;

pub(crate) fn trials() -> [Trial; 2] {
    let cases: [(_, fn()); 2] = [
        (
            "standby::promoted_standby_grants_larger_tokens",
            promoted_standby_grants_larger_tokens,
        ),
        (
            "standby::synchronous_standby_keeps_locks_of_a_table",
            synchronous_standby_keeps_locks_of_a_table,
        ),
    ];
    cases.map(|(name, case)| trial(name, || KIND.ignored(), case))
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

fn synchronous_standby_keeps_locks_of_a_table() {
    let primary = start_own(KIND);
    let standby = primary.standby().unwrap();
    let error = try_open(&format!("{}?locks=table", standby.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    primary
        .execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        .unwrap();
    primary.execute("SELECT pg_reload_conf()").unwrap();
    until("each commit waits for the standby", || {
        let state = "SELECT sync_state FROM pg_stat_replication";
        primary.value(state).unwrap() == "sync"
    });
    let address = Proxy::new(primary.addr()).unwrap();
    let url = with_timeouts(&primary.url_via(address.addr()));
    let open = || try_open(&format!("{url}&locks=table&ttl=60s&wait=60s")).unwrap();
    let (holder, other) = (open(), open());
    let held = holder.lock("a").unwrap();
    address.lead_to(standby.addr());
    primary.kill();
    standby.execute("SELECT pg_promote()").unwrap();
    until("the lease is renewed on the standby", || {
        held.renew().is_ok()
    });
    assert!(other.try_lock("a").unwrap().is_none());
    let token = held.token();
    held.release().unwrap();
    assert!(other.lock("a").unwrap().token() > token);
}
