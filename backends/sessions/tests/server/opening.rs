//! Ways to a server, and what operators see there.

use std::time::{Duration, Instant};

use lockkeeper_core::{ErrorKind, LockName, Released, Severity, WaitOutcome};
use lockkeeper_testkit::{Fault, Proxy, StoreKind, cases, until};

use crate::checks::{refused, soon, waits_in_vain, with_timeouts};
use crate::store::{Case, leftovers, open, start, start_with_tls, try_open};

pub(crate) const CASES: &[Case] = cases![
    unix_socket,
    tls,
    replies_in_drops_end_by_their_deadline,
    forced_release_spares_next_lease_of_same_holder,
    doctor_finds_what_breaks_locks,
];

fn unix_socket(kind: StoreKind) {
    let server = start(kind);
    let url = server.socket_url().unwrap();
    let url = with_timeouts(&format!("{url}password=open-sesame&db=shop"));
    let [holder, other] = [(); 2].map(|()| try_open(&url).unwrap());
    let held = holder.lock("a").unwrap();
    waits_in_vain(&other);
    drop(held);
    drop(other.lock("a").unwrap());
}

fn tls(kind: StoreKind) {
    let (server, authority) = start_with_tls(kind);
    let host = server.single_addr().unwrap().to_string();
    let url = server.url_at(&host, true);
    let trusting = with_timeouts(&format!("{url}ca_file={}", authority.display()));
    let [holder, other] = [(); 2].map(|()| try_open(&trusting).unwrap());
    let held = holder.lock("a").unwrap();
    // The end of a wait is read beneath TLS, and cancelling it shuts down the socket beneath TLS.
    waits_in_vain(&other);
    drop(held);
    drop(other.lock("a").unwrap());
    drop(open(&*server, "").lock("without").unwrap());
    refused(
        &url,
        ErrorKind::PermissionDenied,
        &["certificate", "ca_file"],
    );

    let plain = start(kind);
    let host = plain.single_addr().unwrap().to_string();
    let url = format!(
        "{}ca_file={}",
        plain.url_at(&host, true),
        authority.display()
    );
    refused(&url, ErrorKind::Incompatible, &["TLS", "tls=off"]);
}

/// Each byte comes within the time-outs. The least reply to an attempt takes 20 s, and a login longer.
fn replies_in_drops_end_by_their_deadline(kind: StoreKind) {
    const LIMIT: Duration = Duration::from_secs(10);
    let (server, authority) = start_with_tls(kind);
    let proxy = Proxy::new(server.single_addr().unwrap()).unwrap();
    let host = proxy.addr().to_string();
    let ca_file = authority.display();
    let with_tls = format!("{}ca_file={ca_file}&", server.url_at(&host, true));
    for url in [server.url_at(&host, false), with_tls] {
        let url = format!("{url}pool_size=2&response_timeout=1s&connect_timeout=2s");
        let keeper = try_open(&url).unwrap();
        drop(keeper.lock("a").unwrap());
        proxy.set(Fault::DripReplies(Duration::from_millis(500)));
        // First on the connection that is open, then on new ones.
        for _ in 0..3 {
            let began = Instant::now();
            let error = keeper
                .try_lock_for("a", Duration::from_secs(2))
                .unwrap_err();
            assert!(error.is_retryable(), "{error:?}");
            assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        }
        let began = Instant::now();
        refused(&url, ErrorKind::Unavailable, &["says nothing"]);
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        proxy.set(Fault::Pass);
        until("the lock is free", || {
            keeper.try_lock("a").is_ok_and(|it| it.is_some())
        });
    }
}

/// The server identifies a holder by its session, and a pool uses sessions again.
fn forced_release_spares_next_lease_of_same_holder(kind: StoreKind) {
    let server = start(kind);
    let (keeper, asking) = (open(&*server, ""), open(&*server, ""));
    let admin = asking.admin().unwrap();
    let name = LockName::new("a").unwrap();
    let shown = || admin.held(Some(&name), soon()).unwrap().remove(0);
    let held = keeper.lock("a").unwrap();
    let first = shown();
    // At least as long as it takes a person to read the list.
    let wait = held.lost_signal().wait(Duration::from_millis(1_100));
    assert_eq!(wait, WaitOutcome::TimedOut);
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(!admin.force_release(&first, soon()).unwrap());
    let next = keeper.lock("a").unwrap();
    assert!(!admin.force_release(&first, soon()).unwrap());
    next.renew().unwrap();
    // The lease that is listed now is freed.
    assert!(admin.force_release(&shown(), soon()).unwrap());
    assert_eq!(next.release().unwrap(), Released::AlreadyLost);
    assert_eq!(leftovers(&*server), 0);
}

fn doctor_finds_what_breaks_locks(kind: StoreKind) {
    let server = start(kind);
    for (keys, topic, severity) in [
        ("", "restart", Severity::Warning),
        ("restart_grace=30s", "restart", Severity::Fine),
        ("", "connections", Severity::Fine),
        ("pool_size=500", "connections", Severity::Warning),
        ("", "clock", Severity::Fine),
        ("", "topology", Severity::Fine),
    ] {
        let keeper = open(&*server, keys);
        let findings = keeper.admin().unwrap().examine(soon()).unwrap();
        let found = findings.iter().find(|found| found.topic == topic);
        assert_eq!(found.unwrap().severity, severity, "{keys}: {findings:?}");
    }
}
