//! Releases that are sent and not waited for, and whose replies come with the next batch, late, as an error, or never.

use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Backend, Clock as _, Error, ErrorKind, Grant, LockName, Mode,
    Operation, ReleaseDispatch, ReleaseRequest, Released, RenewRequest, Renewal, SentRelease,
    StoreInfo as _, SystemClock,
};
use lockkeeper_postgres::PostgresProvider;
use lockkeeper_testkit::{Fault, PostgresKind, Proxy, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{
    Case, Lease, TTL, attempt, granted, holder, locks, options, provider, release, start, start_own,
};

pub(crate) const CASES: &[Case] = cases![
    sent_release_and_next_attempt_are_one_exchange,
    reply_with_none_to_read_it_costs_the_connection,
    reply_to_a_sent_release_is_lost,
    reply_to_a_sent_release_is_late,
    sent_release_whose_connection_is_cut,
    refused_release_that_was_sent_frees_the_name,
];

/// The longest time for a reply.
const SOON: Duration = Duration::from_secs(2);

/// Opens a provider by way of a proxy.
fn via(proxy: &Proxy, response_timeout: Duration) -> PostgresProvider {
    let options = options(proxy.addr()).response_timeout(response_timeout);
    PostgresProvider::open(&options, "shop").unwrap()
}

/// Returns a lease on a session that has released the name once: it has prepared what a release sends.
fn prepared(provider: &PostgresProvider) -> Grant<Lease> {
    release(provider, granted(provider, Mode::Exclusive));
    granted(provider, Mode::Exclusive)
}

fn sent(provider: &PostgresProvider, lease: &mut Lease) -> SentRelease {
    let mut release = None;
    // What watches the sessions may have the connection at the moment.
    until("the connection is free", || {
        match provider.send_release(lease) {
            ReleaseDispatch::Sent(sent) => release = Some(sent),
            ReleaseDispatch::NotSent => {}
            ReleaseDispatch::Answered(answer) => panic!("{answer:?}"),
        }
        release.is_some()
    });
    release.unwrap()
}

/// Returns a lease whose release was sent while the proxy applies `fault`, and how many replies the proxy had cut before.
/// The thread that watches the sessions may meet the fault first. Its session is lost then, and another lease is tried.
fn sent_into(
    proxy: &Proxy,
    fault: Fault,
    store: &PostgresProvider,
) -> (Grant<Lease>, SentRelease, u64) {
    let mut found = None;
    until("a release meets the fault", || {
        let mut first = prepared(store);
        let cut = proxy.counts().cut;
        proxy.set(fault);
        match store.send_release(&mut first.lease) {
            ReleaseDispatch::Sent(sent) => {
                found = Some((first, sent, cut));
                return true;
            }
            ReleaseDispatch::NotSent => proxy.set(Fault::Pass),
            ReleaseDispatch::Answered(answer) => panic!("{answer:?}"),
        }
        until("the lease has ended", || {
            collect(store, &mut first.lease, None, false).0.is_ok()
        });
        false
    });
    found.unwrap()
}

type Answers = (
    Result<Released, Error>,
    Option<Result<Option<Grant<Lease>>, Error>>,
);

/// Reads the reply to a release that was sent, and tries the name `seat:42` behind it if `again` says so.
fn collect(
    provider: &PostgresProvider,
    lease: &mut Lease,
    sent: Option<SentRelease>,
    again: bool,
) -> Answers {
    let deadline = SystemClock.now() + WAIT_LIMIT;
    let name = LockName::new("seat:42").unwrap();
    let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
    let mut batch = vec![Operation::Release(ReleaseRequest {
        sent,
        ..ReleaseRequest::new(lease, deadline)
    })];
    batch.extend(again.then(|| {
        Operation::Acquire(AttemptRequest {
            request: &request,
            deadline,
            answer: None,
        })
    }));
    provider.batch(&mut batch);
    let mut batch = batch.into_iter();
    let Some(Operation::Release(release)) = batch.next() else {
        panic!("it is a release");
    };
    let attempt = batch.next().map(|operation| match operation {
        Operation::Acquire(it) => it.answer.unwrap(),
        other => panic!("{other:?}"),
    });
    (release.answer.unwrap(), attempt)
}

fn commands(provider: &PostgresProvider) -> u64 {
    provider.usage().unwrap().commands
}

fn sent_release_and_next_attempt_are_one_exchange(kind: PostgresKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let store = via(&proxy, WAIT_LIMIT);
    let mut first = prepared(&store);
    let (session, before) = (holder(&server), commands(&store));
    let release_sent = sent(&store, &mut first.lease);
    until("the server has freed the name", || locks(&server) == 0);
    let asked = proxy.counts().requests;
    let (released, again) = collect(&store, &mut first.lease, Some(release_sent), true);
    assert_eq!(released.unwrap(), Released::Done);
    let mut second = again.unwrap().unwrap().expect("the name is free");
    assert!(second.epoch > first.epoch);
    assert_eq!(proxy.counts().requests, asked + 1);
    assert_eq!(commands(&store), before + 2);
    assert_eq!((holder(&server), locks(&server)), (session, 1));

    let release_sent = sent(&store, &mut second.lease);
    let (released, _) = collect(&store, &mut second.lease, Some(release_sent), false);
    assert_eq!(released.unwrap(), Released::Done);
    assert_eq!((commands(&store), locks(&server)), (before + 3, 0));
    // The connection is as good as before.
    release(&store, granted(&store, Mode::Exclusive));
    assert_eq!(store.usage().unwrap().connections, 1);
}

/// The engine may end with a reply that nobody has read.
fn reply_with_none_to_read_it_costs_the_connection(kind: PostgresKind) {
    let server = start(kind);
    let store = provider(&server, 2);
    let mut first = prepared(&store);
    drop(sent(&store, &mut first.lease));
    until("the connection is closed", || {
        server.sessions().unwrap().is_empty()
    });
    assert_eq!(locks(&server), 0);
    release(&store, granted(&store, Mode::Exclusive));
}

/// Repeats a release until it has an answer.
#[track_caller]
fn release_in_the_end(provider: &PostgresProvider, lease: &mut Lease) {
    let mut released = None;
    until("the release is answered", || {
        released = collect(provider, lease, None, false).0.ok();
        released.is_some()
    });
    assert_eq!(released, Some(Released::Done));
}

#[track_caller]
fn is_unknown<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
}

fn reply_to_a_sent_release_is_lost(kind: PostgresKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let store = via(&proxy, SOON);
    let (mut first, release_sent, _) = sent_into(&proxy, Fault::DropReplies, &store);
    let (released, _) = collect(&store, &mut first.lease, Some(release_sent), false);
    is_unknown(released);
    proxy.set(Fault::Pass);
    release_in_the_end(&store, &mut first.lease);
    release(&store, granted(&store, Mode::Exclusive));
    assert_eq!(locks(&server), 0);
}

fn reply_to_a_sent_release_is_late(kind: PostgresKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let store = via(&proxy, SOON);
    let (mut first, release_sent, _) = sent_into(&proxy, Fault::Dark, &store);
    let (released, again) = collect(&store, &mut first.lease, Some(release_sent), true);
    // Each by itself.
    is_unknown(released);
    is_unknown(again.unwrap());
    proxy.set(Fault::Pass);
    release_in_the_end(&store, &mut first.lease);
    // What came too late has granted nothing that stays.
    let mut next = None;
    until("the name is granted", || {
        next = attempt(&store, Mode::Exclusive).ok().flatten();
        next.is_some()
    });
    release(&store, next.unwrap());
    until("nothing is left", || locks(&server) == 0);
}

fn sent_release_whose_connection_is_cut(kind: PostgresKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let store = via(&proxy, WAIT_LIMIT);
    let (mut first, release_sent, before) = sent_into(&proxy, Fault::CutReplyAfter(0), &store);
    assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.cut > before));
    proxy.set(Fault::Pass);
    let (released, again) = collect(&store, &mut first.lease, Some(release_sent), true);
    // The session has ended, and the attempt is made on another one.
    assert_eq!(released.unwrap(), Released::AlreadyLost);
    let next = again.unwrap().unwrap().expect("the name is free");
    assert_eq!(locks(&server), 1);
    release(&store, next);
}

/// The server refuses releases while the user has no right to them.
fn refused_release_that_was_sent_frees_the_name(kind: PostgresKind) {
    let server = start_own(kind);
    let unlock = "EXECUTE ON FUNCTION pg_advisory_unlock(int8)";
    let refuse = || {
        let sql = format!("REVOKE {unlock} FROM public");
        server.execute(&sql).unwrap();
    };
    let permit = || {
        let sql = format!("GRANT {unlock} TO public");
        server.execute(&sql).unwrap();
    };
    // Names share a session from the second one on.
    let store = provider(&server, 2);
    let mut first = prepared(&store);
    let name = LockName::new("kept").unwrap();
    let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
    let mut kept = store.acquire(&request).unwrap().unwrap();
    refuse();
    let release_sent = sent(&store, &mut first.lease);
    let (released, _) = collect(&store, &mut first.lease, Some(release_sent), false);
    let kind = released.unwrap_err().kind();
    assert_eq!(kind, ErrorKind::PermissionDenied);
    permit();
    until("the name is freed by itself", || locks(&server) == 1);
    // It concerns no other name of the session.
    let deadline = SystemClock.now() + WAIT_LIMIT;
    let renewal = RenewRequest::new(&mut kept.lease, TTL, deadline);
    let renewed = renewal.ask(|one| store.batch(one));
    assert_eq!(renewed.unwrap(), Renewal::Renewed);
    release(&store, kept);

    // Behind such a release, the session gets the lock a second time. So it is closed.
    let mut first = prepared(&store);
    refuse();
    let release_sent = sent(&store, &mut first.lease);
    let (released, again) = collect(&store, &mut first.lease, Some(release_sent), true);
    for answer in [released.map(drop), again.unwrap().map(drop)] {
        let kind = answer.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::PermissionDenied);
    }
    permit();
    until("nothing is left", || locks(&server) == 0);
    release(&store, granted(&store, Mode::Exclusive));
}
