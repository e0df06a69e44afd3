//! Shared leases and permits: one of several that expires, is renewed, or whose reply is lost.

use std::time::Duration;

use lockkeeper::admin::HeldName;
use lockkeeper::backend::{
    AcquireRequest, Backend, Grant, ReleaseRequest, RenewRequest, Renewal, StoreInfo,
};
use lockkeeper::backends::redis::RedisProvider;
use lockkeeper::clock::SystemClock;
use lockkeeper::{ErrorKind, LockName, Mode, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, cases, until};

use super::Case;
use super::operations::{Lease, TTL, in_time, names, open_with_scripts, release_all};
use super::store::{epoch_at, last_minted, start};
use crate::common::{Keepers as _, WAIT_LIMIT};

pub(super) const CASES: &[Case] = cases![
    one_of_several_expires,
    one_of_several_is_renewed,
    modes_with_lost_replies,
];

const SHARED: Mode = Mode::Shared;
const EXCLUSIVE: Mode = Mode::Exclusive;

const fn permit(limit: u32) -> Mode {
    Mode::Permit { limit }
}

fn asked(name: &LockName, mode: Mode, ttl: Duration) -> AcquireRequest<'_> {
    AcquireRequest::attempt(name, ttl, &SystemClock).with_mode(mode)
}

/// Attempts to acquire `a` for a time.
fn attempt_for(provider: &RedisProvider, mode: Mode, ttl: Duration) -> Option<Grant<Lease>> {
    let [a] = names(["a"]);
    provider.acquire(&asked(&a, mode, ttl)).unwrap()
}

fn try_acquire(provider: &RedisProvider, mode: Mode) -> Option<Grant<Lease>> {
    attempt_for(provider, mode, TTL)
}

#[track_caller]
fn granted(provider: &RedisProvider, mode: Mode) -> Grant<Lease> {
    try_acquire(provider, mode).expect("it can be granted")
}

/// Returns the leases of `a`.
fn held(provider: &RedisProvider) -> Vec<HeldName> {
    let [a] = names(["a"]);
    let admin = provider.admin().unwrap();
    admin.held(Some(&a), in_time()).unwrap()
}

fn renewed(provider: &RedisProvider, lease: &mut Lease, ttl: Duration) -> Renewal {
    let renewal = RenewRequest::new(lease, ttl, in_time());
    renewal.ask(|one| provider.batch(one)).unwrap()
}

fn one_of_several_expires(kind: RedisKind) {
    let server = start(kind);
    let [one, two] = [(); 2].map(|()| open_with_scripts(server.addr(), |options| options));
    let short = Duration::from_secs(3);
    for (mode, waits_for) in [(SHARED, EXCLUSIVE), (permit(2), permit(2))] {
        let mut ended = attempt_for(&one, mode, short).unwrap();
        let mut other = granted(&two, mode);
        assert!(try_acquire(&one, waits_for).is_none());
        let renew = |grant: &mut Grant<Lease>| renewed(&one, &mut grant.lease, TTL);
        until("its ttl is over", || held(&one).len() == 1);
        assert_eq!(renew(&mut ended), Renewal::Lost);
        let release = ReleaseRequest::new(&mut ended.lease, in_time());
        let released = release.ask(|it| one.batch(it)).unwrap();
        assert_eq!(released, Released::AlreadyLost);
        assert_eq!(renew(&mut other), Renewal::Renewed);
        let mut leases = vec![other.lease];
        let next = try_acquire(&one, waits_for);
        assert_eq!(
            next.as_ref().map(|grant| grant.slot),
            waits_for.limit().map(|_| 0)
        );
        leases.extend(next.map(|grant| grant.lease));
        release_all(&two, leases);
        // The key of a lease that expired with all others is free.
        let ended = [(); 2].map(|()| attempt_for(&one, mode, short).unwrap());
        until("all have expired", || held(&two).is_empty());
        assert_eq!(granted_slot(&one, waits_for), 0);
        drop(ended);
    }
    drop((one, two));
    server.assert_clean();
}

/// Acquires and releases `a`.
#[track_caller]
fn granted_slot(provider: &RedisProvider, mode: Mode) -> u32 {
    let grant = granted(provider, mode);
    release_all(provider, [grant.lease]);
    grant.slot
}

fn one_of_several_is_renewed(kind: RedisKind) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    let (short, long) = (Duration::from_millis(500), Duration::from_secs(600));
    for mode in [SHARED, permit(2)] {
        let mut kept = granted(&provider, mode);
        let ended = attempt_for(&provider, mode, short).unwrap();
        let renewal = renewed(&provider, &mut kept.lease, long);
        assert_eq!(renewal, Renewal::Renewed);
        until("the other one has expired", || held(&provider).len() == 1);
        let [left] = held(&provider).try_into().unwrap();
        assert_eq!(left.epoch, Some(kept.epoch));
        assert!(left.remaining.unwrap() > long - WAIT_LIMIT);
        // One with a shorter ttl leaves the key to the longer one.
        let mut other = granted(&provider, mode);
        let renewal = renewed(&provider, &mut other.lease, short);
        assert_eq!(renewal, Renewal::Renewed);
        until("it has expired", || held(&provider).len() == 1);
        let renewal = renewed(&provider, &mut kept.lease, TTL);
        assert_eq!(renewal, Renewal::Renewed);
        release_all(&provider, [kept.lease]);
        drop((ended, other));
    }
    drop(provider);
    server.assert_clean();
}

/// The same owner asks again, and has the lease that it was granted.
fn modes_with_lost_replies(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = open_with_scripts(proxy.addr(), |options| options);
    let rival = open_with_scripts(server.addr(), |options| options);
    for (mode, others) in [
        (EXCLUSIVE, vec![]),
        (SHARED, vec![]),
        (SHARED, vec![SHARED]),
        (permit(3), vec![]),
        (permit(3), vec![permit(3), permit(3)]),
    ] {
        let others: Vec<_> = others
            .into_iter()
            .map(|mode| granted(&rival, mode).lease)
            .collect();
        let [a] = names(["a"]);
        let request = asked(&a, mode, TTL);
        proxy.once("EVALSHA", Fault::CutReplyAfter(0));
        let error = provider.acquire(&request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        let minted = last_minted(&server);
        let grant = provider.acquire(&request).unwrap().unwrap();
        assert_eq!(grant.epoch, epoch_at(minted));
        assert_eq!(last_minted(&server), minted);
        assert_eq!(held(&rival).len(), others.len() + 1);
        let slot = mode.limit().map_or(0, |_| others.len());
        assert_eq!(usize::try_from(grant.slot).unwrap(), slot);
        release_all(&provider, [grant.lease]);
        release_all(&rival, others);
    }
    drop((provider, rival));
    server.assert_clean();
}
