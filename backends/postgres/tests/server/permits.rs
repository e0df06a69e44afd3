//! Permits of a semaphore, asked of the backend itself.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use lockkeeper_core::{
    Backend, Error, Grant, HostInstant, LockKeeper, Mode, Operation, ReleaseRequest, Released,
    StoreInfo,
};
use lockkeeper_testkit::{PostgresKind, PostgresServer, until};

use crate::store::{
    Case, Lease, WAIT_LIMIT, attempt, granted, locks, open, provider, release, start, start_own,
};

pub(crate) const CASES: &[Case] = &[
    (
        "released_permit_ends_the_pause_of_the_first_waiter",
        released_permit_ends_the_pause_of_the_first_waiter,
    ),
    (
        "permits_released_together_end_the_pause",
        permits_released_together_end_the_pause,
    ),
    (
        "free_permit_takes_two_statements",
        free_permit_takes_two_statements,
    ),
    (
        "permit_is_released_though_its_waiter_is_another_users",
        permit_is_released_though_its_waiter_is_another_users,
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
    (
        "session_that_releases_a_permit_is_no_waiter",
        session_that_releases_a_permit_is_no_waiter,
    ),
];

/// What the server logs when a session ends the statement of another one.
const CANCELLED: &str = "canceling statement due to user request";
/// What the server logs when a session releases a lock that it does not hold.
const NOT_OWNED: &str = "you don't own a lock";

const fn permit(limit: u32) -> Mode {
    Mode::Permit { limit }
}

/// Returns how often the server has logged a text.
fn logged(server: &PostgresServer, text: &str) -> usize {
    server.log().matches(text).count()
}

/// Returns whether a session holds the bell of a semaphore: its slot and its limit are 1 and 0.
fn is_waited_for(server: &PostgresServer) -> bool {
    let bells = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted \
                 AND objid::int8 & 1048575 = 1 AND classid::int8 >> 31 = 1";
    server.value(bells).unwrap() == "1"
}

/// Has a keeper wait for a permit until `free` frees one. Returns its slot.
fn slot_after(server: &PostgresServer, keeper: &LockKeeper, free: impl FnOnce()) -> u32 {
    thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let semaphore = keeper.semaphore("seat:42", 3).unwrap();
            let permit = semaphore.try_acquire_for(WAIT_LIMIT).unwrap();
            permit.map(|permit| permit.slot())
        });
        until("it waits in the server", || is_waited_for(server));
        free();
        waits.join().unwrap().expect("a permit was free")
    })
}

fn released_permit_ends_the_pause_of_the_first_waiter(kind: PostgresKind) {
    let server = start(kind);
    let (store, keeper) = (provider(&server, 10), open(&server, "namespace=shop"));
    let before = logged(&server, CANCELLED);
    let [first, second, third] = [(); 3].map(|()| granted(&store, permit(3)));
    release(&store, third);
    assert_eq!(logged(&server, CANCELLED), before, "no session waits");
    let third = granted(&store, permit(3));
    // A pause is ended unless it was over just then, and then the waiter finds the permit by itself.
    let mut freed = second;
    for _ in 0..20 {
        let slot = freed.slot;
        assert_eq!(
            slot_after(&server, &keeper, || release(&store, freed)),
            slot
        );
        if logged(&server, CANCELLED) > before {
            release(&store, first);
            release(&store, third);
            until("nothing is left", || locks(&server) == 0);
            assert_eq!(logged(&server, NOT_OWNED), 0);
            return;
        }
        freed = granted(&store, permit(3));
    }
    panic!("no pause was ended");
}

fn permits_released_together_end_the_pause(kind: PostgresKind) {
    let server = start(kind);
    // With two connections, the first one is shared as soon as it holds a permit.
    let (store, keeper) = (provider(&server, 2), open(&server, "namespace=shop"));
    let before = logged(&server, CANCELLED);
    let release_together = |grants: &mut [Grant<Lease>]| {
        let releases = grants.iter_mut().map(|grant| {
            Operation::Release(ReleaseRequest {
                lease: &mut grant.lease,
                deadline: HostInstant::NEVER,
                answer: None,
            })
        });
        let mut releases: Vec<_> = releases.collect();
        let commands = || store.usage().unwrap().commands;
        let before = commands();
        store.batch(&mut releases);
        assert_eq!(commands(), before + 1);
        for release in releases {
            let Operation::Release(it) = release else {
                panic!("all operations are releases");
            };
            assert_eq!(it.answer.unwrap().unwrap(), Released::Done);
        }
    };
    for _ in 0..20 {
        let mut grants = [(); 3].map(|()| granted(&store, permit(3)));
        slot_after(&server, &keeper, || release_together(&mut grants));
        if logged(&server, CANCELLED) > before {
            return;
        }
    }
    panic!("no pause was ended");
}

fn free_permit_takes_two_statements(kind: PostgresKind) {
    const PAIRS: u64 = 10;
    let server = start(kind);
    let store = provider(&server, 10);
    let pair = || release(&store, granted(&store, permit(5)));
    pair();
    let before = store.usage().unwrap().commands;
    (0..PAIRS).for_each(|_| pair());
    assert_eq!(store.usage().unwrap().commands, before + 2 * PAIRS);
}

/// PostgreSQL lets a user end statements of the roles that it is a member of, but none of a superuser's.
fn permit_is_released_though_its_waiter_is_another_users(kind: PostgresKind) {
    let server = start_own(kind);
    let (user, password) = (PostgresServer::USER, PostgresServer::PASSWORD);
    server
        .execute(&format!(
            "CREATE ROLE guest LOGIN PASSWORD '{password}'; \
             CREATE ROLE admin SUPERUSER LOGIN PASSWORD '{password}'; GRANT admin TO {user}"
        ))
        .unwrap();
    let store = provider(&server, 10);
    let (socket, database) = (server.socket(), PostgresServer::DATABASE);
    for waiter in ["guest", "admin"] {
        let keeper = crate::store::try_open(&format!(
            "postgres:?socket={}&user={waiter}&password={password}&db={database}&namespace=shop&response_timeout=5s",
            socket.display()
        ));
        let keeper = keeper.unwrap();
        let grants = [(); 3].map(|()| granted(&store, permit(3)));
        let mut grants = grants.into_iter();
        let freed = grants.next().unwrap();
        assert_eq!(slot_after(&server, &keeper, || release(&store, freed)), 0);
        grants.for_each(|grant| release(&store, grant));
        until("nothing is left", || locks(&server) == 0);
    }
    assert_eq!(logged(&server, NOT_OWNED), 0);
}

fn permits_of_a_process_share_connections(kind: PostgresKind) {
    let server = start(kind);
    let store = provider(&server, 10);
    let grants: Vec<_> = (0..20).map(|_| granted(&store, permit(20))).collect();
    let slots: Vec<_> = grants.iter().map(|grant| grant.slot).collect();
    assert_eq!(slots, (0..20).collect::<Vec<_>>());
    assert!(attempt(&store, permit(20)).unwrap().is_none());
    assert!(store.usage().unwrap().connections <= 10);
    for grant in grants {
        release(&store, grant);
    }
    assert_eq!(locks(&server), 0);
}

/// Several sessions end the pause of one.
fn permits_released_at_once_serve_all_waiters(kind: PostgresKind) {
    let server = start(kind);
    let store = provider(&server, 10);
    let [first, second] = [(); 2].map(|()| granted(&store, permit(2)));
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
    until("nothing is left", || locks(&server) == 0);
}

/// Attempts that meet at the gate are no reason to fail.
fn attempts_at_once_take_all_permits(kind: PostgresKind) {
    let server = start(kind);
    let stores = [(); 4].map(|()| provider(&server, 10));
    let (barrier, failed) = (Barrier::new(stores.len()), AtomicU32::new(0));
    thread::scope(|scope| {
        for store in &stores {
            let (barrier, failed) = (&barrier, &failed);
            scope.spawn(move || {
                for _ in 0..50 {
                    barrier.wait();
                    let grant = attempt(store, permit(4)).unwrap();
                    failed.fetch_add(u32::from(grant.is_none()), Ordering::Relaxed);
                    if let Some(grant) = grant {
                        release(store, grant);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0);
    assert_eq!(locks(&server), 0);
}

/// A session that releases a permit finds out whether another one waits by a shared lock on the bell.
fn session_that_releases_a_permit_is_no_waiter(kind: PostgresKind) {
    let server = start(kind);
    let store = provider(&server, 10);
    let first = granted(&store, permit(2));
    let bell = "SELECT ((classid::int8 << 32 | objid::int8) >> 20 << 20) | 1 FROM pg_locks \
                WHERE locktype = 'advisory' AND objsubid = 1";
    let bell = server.value(bell).unwrap();
    let look = format!("SELECT pg_advisory_lock_shared({bell}), pg_sleep(600)");
    let looks = "FROM pg_locks WHERE mode = 'ShareLock' AND objsubid = 1";
    thread::scope(|scope| {
        let looking = scope.spawn(|| server.execute(&look));
        until("a session looks", || {
            server.value(&format!("SELECT count(*) {looks}")).unwrap() == "1"
        });
        let second = attempt(&store, permit(2));
        let end = format!("SELECT pg_terminate_backend(pid, 10000) {looks}");
        assert_eq!(server.value(&end).unwrap(), "t");
        assert!(looking.join().unwrap().is_err(), "its session was ended");
        release(&store, second.unwrap().expect("no session waits"));
    });
    release(&store, first);
    assert_eq!(locks(&server), 0);
}
