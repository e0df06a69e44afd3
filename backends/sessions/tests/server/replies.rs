//! Batches on a network that loses and delays messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{ErasedLease, ErrorKind, LockProvider, Renewal};
use lockkeeper_testkit::{Fault, Proxy, Shared, StoreKind, cases, until};

use crate::batch::{Answer, Answers, Batch, TTL, release, taken, tried, try_beside_lost};
use crate::checks::WAIT_LIMIT;
use crate::store::{Case, Via, holders, keeper, leftovers, open, provider_by, start};

pub(crate) const CASES: &[Case] = cases![
    batch_whose_connection_is_cut,
    batch_without_a_reply_is_unknown,
    late_grant_of_a_batch_is_given_back,
    slow_session_delays_no_other,
    wait_on_a_slow_network_ends_busy,
    missing_reply_leads_to_a_new_connection,
];

/// The longest time for a reply.
const SOON: Duration = Duration::from_secs(2);

/// Opens a provider by way of a proxy, on which names of one ttl share a session from the third one on.
fn via_proxy(
    kind: StoreKind,
    response_timeout: Duration,
) -> (Shared, Proxy, Arc<dyn LockProvider>) {
    let server = start(kind);
    let proxy = Proxy::new(server.single_addr().unwrap()).unwrap();
    let addr = proxy.addr();
    let via = Via {
        pool_size: 4,
        response_timeout,
    };
    let provider = provider_by(kind, via, move || addr).unwrap();
    (server, proxy, provider)
}

#[track_caller]
fn granted(answer: Answer) -> ErasedLease {
    answer.unwrap().expect("no other holder").lease
}

/// Repeats an attempt, which is never busy, until it is granted.
fn granted_in_the_end(provider: &dyn LockProvider, mut last: Answer) -> ErasedLease {
    until("the name is granted", || {
        if let Err(error) = &last {
            // Unavailable while the session of the first request is being ended.
            let kinds = [ErrorKind::Unknown, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            last = tried(provider, &["new"], TTL).remove(0);
        }
        last.is_ok()
    });
    granted(last)
}

fn batch_whose_connection_is_cut(kind: StoreKind) {
    let (server, proxy, provider) = via_proxy(kind, WAIT_LIMIT);
    let in_reply = |bytes| Some(Fault::CutReplyAfter(bytes));
    for fault in [None, in_reply(0), in_reply(7)] {
        let [mut freed, mut kept] = taken(&*provider, ["freed", "kept"]);
        match fault {
            None => proxy.cut(),
            Some(fault) => proxy.once("default:new", fault),
        }
        let new = try_beside_lost(&*provider, [&mut freed, &mut kept]);
        let mut new = granted_in_the_end(&*provider, new);
        release(&*provider, [&mut new]);
        until("nothing is held", || leftovers(&*server) == 0);
    }
}

fn assert_unknown((tried, released, renewed): &Answers) {
    let errors = tried.iter().map(|it| it.as_ref().err());
    let errors = errors.chain(released.iter().map(|it| it.as_ref().err()));
    for error in errors.chain(renewed.iter().map(|it| it.as_ref().err())) {
        let kind = error.map(lockkeeper_core::Error::kind);
        assert_eq!(kind, Some(ErrorKind::Unknown), "{error:?}");
    }
}

fn batch_without_a_reply_is_unknown(kind: StoreKind) {
    let (server, proxy, provider) = via_proxy(kind, SOON);
    let mut other = None;
    let ttl = Duration::from_secs(6);
    for fault in [Fault::DropRequests, Fault::DropReplies, Fault::DropReplies] {
        let mut leases = tried(&*provider, &["freed", "kept"], ttl).into_iter();
        let [mut freed, mut kept] = [(); 2].map(|()| granted(leases.next().unwrap()));
        assert_eq!(holders(&*server, &["freed", "kept"]).len(), 1);
        proxy.once("default:new", fault);
        let batch = Batch {
            tries: &["new"],
            releases: vec![&mut freed],
            renewals: vec![&mut kept],
        };
        let mut answers = batch.run(&*provider, ttl);
        assert_unknown(&answers);
        let mut new = granted_in_the_end(&*provider, answers.0.remove(0));
        release(&*provider, [&mut new]);
        for name in ["new", "freed", "kept"] {
            until("nothing is held", || holders(&*server, &[name]).is_empty());
        }
        // The last attempts are made on a session with another name.
        if fault == Fault::DropReplies {
            other.get_or_insert_with(|| taken(&*provider, ["other"]));
        }
    }
}

fn late_grant_of_a_batch_is_given_back(kind: StoreKind) {
    let (server, proxy, provider) = via_proxy(kind, SOON);
    let [mut freed, mut kept] = taken(&*provider, ["freed", "kept"]);
    assert_eq!(holders(&*server, &["freed", "kept"]).len(), 1);
    proxy.once("default:late", Fault::DelayReplies(4 * SOON));
    let batch = Batch {
        tries: &["late"],
        releases: vec![&mut freed],
        ..Batch::default()
    };
    assert_unknown(&batch.run(&*provider, TTL));
    assert_eq!(holders(&*server, &["late", "kept"]).len(), 1);
    until("the late grant is released", || leftovers(&*server) == 1);
    let [mut late] = taken(&*provider, ["late"]);
    release(&*provider, [&mut late, &mut kept]);
}

/// The other idle connection is as old as the one on which the reply is missing.
fn missing_reply_leads_to_a_new_connection(kind: StoreKind) {
    let (server, proxy, provider) = via_proxy(kind, SOON);
    let mut held = ["one", "other"].map(|name| {
        let [lease] = taken(&*provider, [name]);
        lease
    });
    release(&*provider, &mut held);
    let before = proxy.counts().accepted;
    proxy.once("default:new", Fault::DropRequests);
    let mut new = granted(tried(&*provider, &["new"], TTL).remove(0));
    assert_eq!(proxy.counts().accepted, before + 1);
    release(&*provider, [&mut new]);
    until("nothing is held", || leftovers(&*server) == 0);
}

/// A reply takes longer than the time that is left for it after the end of a wait.
fn wait_on_a_slow_network_ends_busy(kind: StoreKind) {
    let (server, proxy, provider) = via_proxy(kind, WAIT_LIMIT);
    let _held = open(&*server, "").lock("seat").unwrap();
    let keeper = keeper(&provider);
    proxy.set(Fault::DelayReplies(Duration::from_millis(100)));
    let mut busy = 0;
    until("three waits have ended busy", || {
        // After a reply that is missing, a connection takes ten of them.
        let (began, wait) = (Instant::now(), Duration::from_secs(4));
        let waited = keeper.try_lock_for("seat", wait);
        if waited.is_ok_and(|guard| guard.is_none()) {
            assert!(began.elapsed() >= wait);
            busy += 1;
        }
        busy == 3
    });
}

fn slow_session_delays_no_other(kind: StoreKind) {
    let (server, proxy, provider) = via_proxy(kind, 2 * SOON);
    let other = TTL / 2;
    let [mut slow] = taken(&*provider, ["slow"]);
    let mut near = granted(tried(&*provider, &["near"], other).remove(0));
    assert_eq!(holders(&*server, &["slow", "near"]).len(), 2);
    proxy.once("default:slow", Fault::DelayReplies(6 * SOON));
    let batch = Batch {
        tries: &["new"],
        renewals: vec![&mut slow],
        ..Batch::default()
    };
    let (mut tried, _, renewed) = batch.run(&*provider, other);
    let error = renewed[0].as_ref().expect_err("it has no reply yet");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    let mut new = granted(tried.remove(0));
    assert_eq!(holders(&*server, &["new", "near"]).len(), 1);
    release(&*provider, [&mut new, &mut near]);
    until("the slow session replies", || {
        let batch = Batch {
            renewals: vec![&mut slow],
            ..Batch::default()
        };
        matches!(batch.run(&*provider, TTL).2[..], [Ok(Renewal::Renewed)])
    });
    release(&*provider, [&mut slow]);
}
