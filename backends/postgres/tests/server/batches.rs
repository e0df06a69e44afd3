//! Several locks at once, locks of both modes on one session, and what a wait costs.

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Backend, HostInstant, LockName, Mode, Operation,
    ReleaseRequest, Released, RenewRequest, Renewal, StoreInfo, SystemClock,
};
use lockkeeper_testkit::{PostgresKind, cases};

use crate::store::{Case, TTL, attempt, granted, locks, provider, release, start};

pub(crate) const CASES: &[Case] = cases![
    session_with_a_shared_lock_is_no_way_to_an_exclusive_one,
    locks_of_both_modes_travel_in_one_statement,
];

/// PostgreSQL grants a session an exclusive lock beside its own shared one.
fn session_with_a_shared_lock_is_no_way_to_an_exclusive_one(kind: PostgresKind) {
    let server = start(kind);
    // With two connections, the first one is shared as soon as it holds a lock.
    let store = provider(&server, 2);
    let reader = granted(&store, Mode::Shared);
    assert!(attempt(&store, Mode::Exclusive).unwrap().is_none());
    let other = granted(&store, Mode::Shared);
    assert!(other.epoch > reader.epoch);
    release(&store, reader);
    assert!(attempt(&store, Mode::Exclusive).unwrap().is_none());
    release(&store, other);
    let writer = granted(&store, Mode::Exclusive);
    assert!(attempt(&store, Mode::Shared).unwrap().is_none());
    release(&store, writer);
    assert_eq!(locks(&server), 0);
}

fn locks_of_both_modes_travel_in_one_statement(kind: PostgresKind) {
    let server = start(kind);
    let store = provider(&server, 2);
    let names: Vec<_> = (0..20)
        .map(|at| LockName::new(format!("seat:{at}")).unwrap())
        .collect();
    let request = |(at, name)| {
        let mode = [Mode::Exclusive, Mode::Shared][at % 2];
        AcquireRequest::attempt(name, TTL, &SystemClock).with_mode(mode)
    };
    let requests: Vec<_> = names.iter().enumerate().map(request).collect();
    let mut attempts: Vec<_> = requests
        .iter()
        .map(|request| {
            Operation::Acquire(AttemptRequest {
                request,
                deadline: HostInstant::NEVER,
                answer: None,
            })
        })
        .collect();
    // Its session is there, and what a session needs is prepared.
    let warm = granted(&store, Mode::Exclusive);
    let before = store.usage().unwrap().commands;
    store.batch(&mut attempts);
    assert_eq!(store.usage().unwrap().commands, before + 1);
    let grant = |operation| match operation {
        Operation::Acquire(it) => it.answer.unwrap().unwrap().unwrap(),
        _ => panic!("the operations are attempts"),
    };
    let mut grants: Vec<_> = attempts.into_iter().map(grant).collect();
    assert!(grants.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch));
    let exclusive = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 \
                     AND mode = 'ExclusiveLock'";
    assert_eq!(server.value(exclusive).unwrap(), "11");

    let (renewed, released) = grants.split_at_mut(10);
    let renewals = renewed.iter_mut().map(|grant| {
        Operation::Renew(RenewRequest {
            lease: &mut grant.lease,
            ttl: TTL,
            deadline: HostInstant::NEVER,
            answer: None,
        })
    });
    let releases = released
        .iter_mut()
        .map(|grant| Operation::Release(ReleaseRequest::new(&mut grant.lease, HostInstant::NEVER)));
    let mut operations: Vec<_> = renewals.chain(releases).collect();
    let before = store.usage().unwrap().commands;
    store.batch(&mut operations);
    assert_eq!(store.usage().unwrap().commands, before + 1);
    for operation in operations {
        match operation {
            Operation::Renew(it) => assert_eq!(it.answer.unwrap().unwrap(), Renewal::Renewed),
            Operation::Release(it) => assert_eq!(it.answer.unwrap().unwrap(), Released::Done),
            Operation::Acquire(_) => panic!("no operation is an attempt"),
        }
    }
    assert_eq!(locks(&server), 11);
    grants.truncate(10);
    grants.into_iter().for_each(|grant| release(&store, grant));
    release(&store, warm);
    assert_eq!(locks(&server), 0);
}
