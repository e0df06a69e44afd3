//! Permits of a semaphore, asked of the backend itself.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, AcquireRequest, Backend, CancelToken, Error, ErrorKind, Grant, HostInstant,
    LockKeeper, LockName, Mode, Released, Renewal, StoreInfo, SystemClock,
};
use lockkeeper_mysql::MySqlProvider;
use lockkeeper_testkit::{MySqlKind, MySqlServer, until};

use crate::store::{Case, WAIT_LIMIT, open, options, start, start_own};

pub(crate) const CASES: &[Case] = &[
    (
        "permits_take_the_smallest_free_slot",
        permits_take_the_smallest_free_slot,
    ),
    (
        "another_limit_is_refused_while_any_permit_is_held",
        another_limit_is_refused_while_any_permit_is_held,
    ),
    (
        "released_permit_wakes_the_first_waiter",
        released_permit_wakes_the_first_waiter,
    ),
    (
        "attempt_does_not_pass_a_waiter",
        attempt_does_not_pass_a_waiter,
    ),
    (
        "killed_holder_frees_its_permit",
        killed_holder_frees_its_permit,
    ),
    (
        "permits_of_a_process_share_connections",
        permits_of_a_process_share_connections,
    ),
    (
        "permits_released_at_once_serve_all_waiters",
        permits_released_at_once_serve_all_waiters,
    ),
    (
        "attempts_at_once_take_all_permits",
        attempts_at_once_take_all_permits,
    ),
    ("permits_are_listed_and_freed", permits_are_listed_and_freed),
];

const TTL: Duration = Duration::from_secs(30);

type Lease = <MySqlProvider as Backend>::Lease;
type Attempt = Result<Option<Grant<Lease>>, Error>;

fn provider(server: &MySqlServer) -> MySqlProvider {
    MySqlProvider::open(&options(server), "shop").unwrap()
}

fn attempt(provider: &MySqlProvider, limit: u32) -> Attempt {
    let name = LockName::new("seat:42").unwrap();
    let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
    provider.acquire(&request.with_mode(Mode::Permit { limit }))
}

fn granted(provider: &MySqlProvider, limit: u32) -> Grant<Lease> {
    attempt(provider, limit).unwrap().expect("a permit is free")
}

fn release(provider: &MySqlProvider, mut grant: Grant<Lease>) {
    let released = provider.release(&mut grant.lease, HostInstant::NEVER);
    assert_eq!(released.unwrap(), Released::Done);
}

fn names(server: &MySqlServer) -> usize {
    server.held().unwrap().len()
}

fn permits_take_the_smallest_free_slot(kind: MySqlKind) {
    let server = start(kind);
    let stores = [(); 2].map(|()| provider(&server));
    let [one, two] = &stores;
    let [first, second, mut third] = [one, two, one].map(|store| granted(store, 3));
    assert_eq!([first.slot, second.slot, third.slot], [0, 1, 2]);
    assert!(first.epoch < second.epoch && second.epoch < third.epoch);
    for store in &stores {
        assert!(attempt(store, 3).unwrap().is_none());
    }
    let renewed = one.renew(&mut third.lease, TTL, HostInstant::NEVER);
    assert_eq!(renewed.unwrap(), Renewal::Renewed);
    release(two, second);
    let again = granted(one, 3);
    assert_eq!(again.slot, 1);
    assert!(again.epoch > third.epoch);
    for grant in [first, third, again] {
        release(one, grant);
    }
    assert_eq!(names(&server), 0);
}

fn another_limit_is_refused_while_any_permit_is_held(kind: MySqlKind) {
    let server = start(kind);
    let (one, two) = (provider(&server), provider(&server));
    let [first, second, third] = [(); 3].map(|()| granted(&one, 3));
    let refused = |limit| {
        let error = attempt(&two, limit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitMismatch);
        assert!(error.message().contains("permits of 3"), "{error}");
    };
    refused(2);
    release(&one, first);
    release(&one, second);
    // The slot of the one that is left is none of a semaphore of 2.
    for limit in [1, 2, 5] {
        refused(limit);
    }
    release(&one, third);
    let other = granted(&two, 2);
    release(&two, other);
    assert_eq!(names(&server), 0);
}

/// Has a keeper wait for a permit until `free` frees one. Returns its slot.
fn slot_after(server: &MySqlServer, limit: u32, free: impl FnOnce()) -> u32 {
    thread::scope(|scope| {
        let keeper = open(server, "namespace=shop");
        let waits = scope.spawn(move || {
            let semaphore = keeper.semaphore("seat:42", limit).unwrap();
            let permit = semaphore.try_acquire_for(WAIT_LIMIT).unwrap();
            permit.map(|permit| permit.slot())
        });
        until("it waits in the server", || is_waited_for(server));
        free();
        waits.join().unwrap().expect("a permit was free")
    })
}

fn is_waited_for(server: &MySqlServer) -> bool {
    let held = server.held().unwrap();
    held.iter().any(|(name, _)| name == "shop:seat:42+w")
}

fn released_permit_wakes_the_first_waiter(kind: MySqlKind) {
    let server = start(kind);
    let store = provider(&server);
    let mut client = server.client().unwrap();
    let mut kills = || client.status("Com_kill").unwrap();
    let before = kills();
    let [first, second, third] = [(); 3].map(|()| granted(&store, 3));
    release(&store, third);
    assert_eq!(kills(), before, "no session waits");
    let third = granted(&store, 3);
    assert_eq!(slot_after(&server, 3, || release(&store, second)), 1);
    assert_eq!(kills(), before + 1, "its pause is ended");
    release(&store, first);
    release(&store, third);
    until("nothing is left", || names(&server) == 0);
}

fn attempt_does_not_pass_a_waiter(kind: MySqlKind) {
    let server = start(kind);
    let store = provider(&server);
    let [first, second] = [(); 2].map(|()| granted(&store, 2));
    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let keeper = open(&server, "namespace=shop");
        let options = AcquireOptions::new()
            .mode(Mode::Permit { limit: 2 })
            .wait_forever()
            .cancel(&cancel);
        let waits = scope.spawn(move || keeper.acquire("seat:42", &options).map(drop));
        until("it waits in the server", || is_waited_for(&server));
        assert!(attempt(&store, 2).unwrap().is_none());
        let error = attempt(&store, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitMismatch);
        cancel.cancel();
        let error = waits.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    until("the waiter left nothing", || names(&server) == 4);
    release(&store, first);
    release(&store, second);
    assert_eq!(names(&server), 0);
}

fn killed_holder_frees_its_permit(kind: MySqlKind) {
    let server = start(kind);
    let (one, two) = (provider(&server), provider(&server));
    let first = granted(&one, 2);
    let second = granted(&two, 2);
    let (_, session) = server.held().unwrap().remove(0);
    let kill = || server.execute(&format!("KILL {session}")).unwrap();
    assert!(slot_after(&server, 2, kill) < 2);
    drop((first, second));
}

fn permits_of_a_process_share_connections(kind: MySqlKind) {
    let server = start(kind);
    let store = provider(&server);
    let grants: Vec<_> = (0..20).map(|_| granted(&store, 20)).collect();
    let slots: Vec<_> = grants.iter().map(|grant| grant.slot).collect();
    assert_eq!(slots, (0..20).collect::<Vec<_>>());
    assert!(attempt(&store, 20).unwrap().is_none());
    assert!(store.usage().unwrap().connections <= 10);
    for grant in grants {
        release(&store, grant);
    }
    assert_eq!(names(&server), 0);
}

/// Several sessions end the pause of one.
fn permits_released_at_once_serve_all_waiters(kind: MySqlKind) {
    let server = start(kind);
    let store = provider(&server);
    let [first, second] = [(); 2].map(|()| granted(&store, 2));
    let keepers = [(); 4].map(|()| open(&server, "namespace=shop"));
    let served = thread::scope(|scope| {
        let wait = |keeper| {
            let semaphore = LockKeeper::semaphore(keeper, "seat:42", 2)?;
            (0..20).try_for_each(|_| semaphore.acquire()?.release().map(drop))
        };
        let threads: Vec<_> = keepers
            .iter()
            .map(|it| scope.spawn(move || wait(it)))
            .collect();
        until("one waits in the server", || is_waited_for(&server));
        release(&store, first);
        release(&store, second);
        let results = threads.into_iter().map(|it| it.join().unwrap());
        results.collect::<Result<Vec<_>, Error>>()
    });
    served.unwrap();
    until("nothing is left", || names(&server) == 0);
}

/// Attempts that meet at the gate are no reason to fail.
fn attempts_at_once_take_all_permits(kind: MySqlKind) {
    let server = start(kind);
    let stores = [(); 4].map(|()| provider(&server));
    let (barrier, failed) = (Barrier::new(stores.len()), AtomicU32::new(0));
    thread::scope(|scope| {
        for store in &stores {
            let (barrier, failed) = (&barrier, &failed);
            scope.spawn(move || {
                for _ in 0..50 {
                    barrier.wait();
                    let grant = attempt(store, 4).unwrap();
                    failed.fetch_add(u32::from(grant.is_none()), Ordering::Relaxed);
                    if let Some(grant) = grant {
                        release(store, grant);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0);
    assert_eq!(names(&server), 0);
}

fn permits_are_listed_and_freed(kind: MySqlKind) {
    let server = start_own(kind);
    if kind == MySqlKind::MySql9 {
        server
            .execute("GRANT SELECT ON performance_schema.* TO 'keeper'@'%'")
            .unwrap();
    }
    let store = provider(&server);
    let keeper = open(&server, "namespace=shop");
    let long = "Long name ".repeat(8);
    let guard = keeper.lock("seat:42").unwrap();
    let [first, second] = [(); 2].map(|()| granted(&store, 2));
    // The second is short enough for a lock, and too long with what tells its permits apart.
    let permits = [long, "x".repeat(59)].map(|name| {
        let semaphore = keeper.semaphore(name, 3).unwrap();
        semaphore.acquire().unwrap()
    });
    let admin = store.admin().unwrap();
    let name = LockName::new("seat:42").unwrap();
    let one = admin.held(Some(&name), HostInstant::NEVER).unwrap();
    let shown: Vec<_> = one.iter().map(|held| (held.mode, held.slot)).collect();
    let limit = Mode::Permit { limit: 2 };
    assert_eq!(
        shown,
        [(Mode::Exclusive, None), (limit, Some(0)), (limit, Some(1))]
    );
    let all = admin.held(None, HostInstant::NEVER).unwrap();
    assert_eq!(all.len(), 5);
    assert_eq!(all.iter().filter(|held| !held.is_whole).count(), 2);
    drop(permits);
    drop(guard);
    assert!(admin.force_release(&one[2], HostInstant::NEVER).unwrap());
    assert_eq!(granted(&store, 2).slot, second.slot);
    drop(first);
}
