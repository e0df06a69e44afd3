//! Threads that hold one name and wait for another, on fewer connections than threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{slice, thread};

use lockkeeper_core::{
    AcquireOptions, CancelToken, Error, ErrorKind, LeasePolicy, LockGuard, LockKeeper, Released,
};
use lockkeeper_testkit::{StoreKind, TestServer, cases, until};

use crate::store::{Case, leftovers, open, start, until_waiting};

pub(crate) const CASES: &[Case] = cases![
    pairs_in_one_process,
    pairs_in_several_processes,
    names_requested_at_once_share_connections,
    waits_leave_a_connection_for_free_names,
    holders_wait_without_a_connection,
];

/// Time for a reply on a busy machine.
const SLOW: &str = "wait=60s&response_timeout=5s";
const THREADS: u64 = 40;
const TRANSFERS: usize = 4;
const ACCOUNTS: usize = 20;
const BALANCE: u64 = 1_000;

/// Has 40 threads, each on one of the keepers, transfer 10 times between two accounts, whose names they
/// take in sorted order.
fn transfer(keepers: &[LockKeeper]) {
    let accounts: Vec<_> = (0..ACCOUNTS).map(|_| AtomicU64::new(BALANCE)).collect();
    let account = |number: usize| &accounts[number];
    let failures: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .zip(keepers.iter().cycle())
            .map(|(seed, keeper)| {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let transfer = |_| {
                        let from = random.usize(..ACCOUNTS);
                        let to = (from + random.usize(1..ACCOUNTS)) % ACCOUNTS;
                        let lock = |number| keeper.lock(format!("account:{number:02}"));
                        let _first = lock(from.min(to))?;
                        let _second = lock(from.max(to))?;
                        // Another thread that held one of them would break the sum.
                        let [less, more] = [from, to].map(|at| account(at).load(Ordering::Relaxed));
                        thread::yield_now();
                        account(from).store(less - 1, Ordering::Relaxed);
                        account(to).store(more + 1, Ordering::Relaxed);
                        Ok::<_, Error>(())
                    };
                    let results = (0..TRANSFERS).map(transfer);
                    results.filter_map(Result::err).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|it| it.join().unwrap())
            .collect()
    });
    assert!(
        failures.is_empty(),
        "{} failed: {}",
        failures.len(),
        failures[0]
    );
    let sum: u64 = accounts.iter().map(|it| it.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, BALANCE * accounts.len() as u64);
}

/// Threads of one process wait for each other in the process. The names that they hold are more than the
/// connections.
fn pairs_in_one_process(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "wait=60s");
    transfer(slice::from_ref(&keeper));
}

/// Threads of several processes wait for each other in the server, and more threads do so than there are
/// connections.
fn pairs_in_several_processes(kind: StoreKind) {
    let server = start(kind);
    transfer(&[(); 2].map(|()| open(&*server, "wait=60s")));
    for pool_size in [2, 4] {
        let keys = format!("{SLOW}&pool_size={pool_size}");
        transfer(&[(); 4].map(|()| open(&*server, &keys)));
    }
}

/// No thread waits for a connection when the others hold theirs for long: the names share sessions.
fn names_requested_at_once_share_connections(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "wait=60s");
    let barrier = Barrier::new(THREADS as usize);
    let lock = |number, which| keeper.lock(format!("{which} of {number}"));
    let lock_both = &|number| {
        barrier.wait();
        Ok::<_, Error>([lock(number, "first")?, lock(number, "second")?])
    };
    let held: Vec<_> = thread::scope(|scope| {
        let threads = (0..THREADS).map(|number| scope.spawn(move || lock_both(number)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let held: Result<Vec<_>, Error> = held.into_iter().collect();
    assert_eq!(held.unwrap().len() as u64, THREADS);
}

/// Has the keeper wait for a name in the server, and returns its guard.
fn waited_for(
    server: &dyn TestServer,
    rival: &LockKeeper,
    keeper: &LockKeeper,
    name: &str,
) -> LockGuard {
    let held = rival.lock(name).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| keeper.lock(name));
        until_waiting(server, &[name], 1);
        drop(held);
        waits.join().unwrap().unwrap()
    })
}

fn waits_leave_a_connection_for_free_names(kind: StoreKind) {
    let server = start(kind);
    let rival = open(&*server, "");
    let (all, names) = (["a", "b", "c", "d", "e"], ["a", "b", "c", "d"]);
    let held = all.map(|name| rival.lock(name).unwrap());
    let keeper = open(&*server, &format!("{SLOW}&pool_size=3"));
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let lock = |name| keeper.lock(name).map(LockGuard::release);
        let threads = names.map(|name| scope.spawn(move || lock(name)));
        let cancelled = scope.spawn(|| keeper.acquire("e", &options));
        until_waiting(&*server, &all, 2);
        for secs in [5, 6, 7] {
            let policy = LeasePolicy::Renewed {
                ttl: Duration::from_secs(secs),
            };
            let free = keeper.acquire("free", &AcquireOptions::new().lease(policy));
            drop(free.unwrap().expect("no other holder"));
        }
        cancel.cancel();
        let error = cancelled.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        until_waiting(&*server, &all, 2);
        drop(held);
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap().unwrap(), Released::Done);
        }
    });
    until("all is free", || leftovers(&*server) == 0);
}

/// Names that were waited for have the whole pool, and more are waited for.
fn holders_wait_without_a_connection(kind: StoreKind) {
    let server = start(kind);
    let rival = open(&*server, "");
    let keeper = open(&*server, &format!("{SLOW}&pool_size=2"));
    let first = ["a", "b"].map(|name| waited_for(&*server, &rival, &keeper, name));
    let held = ["c", "d"].map(|name| rival.lock(name).unwrap());
    let sent = || keeper.usage().unwrap().commands;
    let before = sent();
    thread::scope(|scope| {
        let lock = |name| keeper.lock(name);
        let threads = ["c", "d"].map(|name| scope.spawn(move || lock(name)));
        until("both threads have found their name busy", || {
            sent() >= before + 4
        });
        until_waiting(&*server, &["c", "d"], 0);
        drop(held);
        for thread in threads {
            drop(thread.join().unwrap().unwrap());
        }
    });
    for guard in first {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    until("all is free", || leftovers(&*server) == 0);
}
