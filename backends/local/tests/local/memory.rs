//! The in-process store.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AcquireOptions, CancelToken, Clock, Config, Drivers, ErrorKind, HostInstant, LeasePolicy,
    LockGuard, LockKeeper, LockName, LockProvider, Released, StoreInfo, Wait, WaitOutcome,
    epoch_at,
};
use lockkeeper_local::{MemoryDriver, MemoryProvider};

use crate::modes::{TestStore, mode_cases};
use crate::{expired_lease_is_refused, manual_clock, until};

/// Returns the number of waiters for a held name.
fn waiters(provider: &MemoryProvider, name: &str) -> u64 {
    let name = LockName::new(name).unwrap();
    let admin = provider.admin().unwrap();
    let held = admin.held(Some(&name), HostInstant::NEVER).unwrap();
    held[0].waiting.unwrap()
}

fn keeper(provider: &MemoryProvider, clock: &Arc<dyn Clock>) -> LockKeeper {
    LockKeeper::builder(Arc::new(provider.clone()))
        .clock(Arc::clone(clock))
        .handover_max(0)
        .wait(Wait::Forever)
        .build()
        .unwrap()
}

#[test]
fn stores_are_shared_by_name_and_namespace_until_their_last_user() {
    let drivers = Drivers::new().with(MemoryDriver);
    let open = |url: &str| drivers.open(&Config::from_url(url).unwrap()).unwrap();
    let first = open("memory:meet");
    let held = first.lock("seat").unwrap();
    assert!(open("memory:meet").try_lock("seat").unwrap().is_none());
    for other in ["memory:", "memory:other", "memory:meet?namespace=shop"] {
        assert!(open(other).try_lock("seat").unwrap().is_some(), "{other}");
    }
    let token = held.token();
    drop(first);
    assert!(
        open("memory:meet").try_lock("seat").unwrap().is_none(),
        "a guard outlives its keeper"
    );
    drop(held);
    until("the store has ended", || {
        open("memory:meet").try_lock("seat").unwrap().is_some()
    });
    assert!(open("memory:meet").lock("seat").unwrap().token() > token);
}

#[test]
fn epochs_follow_the_wall_clock() {
    let second = 1 << 24;
    let (clock, shared) = manual_clock();
    let stores = [
        MemoryProvider::new(),
        MemoryProvider::with_clock(Arc::clone(&shared)),
    ];
    let keepers = [
        LockKeeper::builder(Arc::new(stores[0].clone()))
            .build()
            .unwrap(),
        keeper(&stores[1], &shared),
    ];
    let mut last = 0;
    for _ in 0..3 {
        for keeper in &keepers {
            let before = epoch_at(SystemTime::now()) - second;
            let epoch = keeper.lock("seat").unwrap().token().get() >> 7;
            let after = epoch_at(SystemTime::now()) + second;
            assert!((before..after).contains(&epoch) && epoch > last, "{epoch}");
            last = epoch;
        }
        clock.advance(Duration::from_secs(10));
    }
}

#[test]
fn evicted_holder_notices_at_once() {
    let provider = MemoryProvider::new();
    let keeper = || {
        let ttl = Duration::from_secs(3_600);
        LockKeeper::builder(Arc::new(provider.clone()))
            .lease(LeasePolicy::Renewed { ttl })
            .build()
            .unwrap()
    };
    let keepers = [keeper(), keeper()];
    let deadline = HostInstant::NEVER;
    let assert_lost = |guard: &LockGuard| {
        let waited = guard.lost_signal().wait(Duration::from_secs(60));
        assert_eq!(waited, WaitOutcome::Lost);
    };
    for keeper in &keepers {
        let [evicted, unlocked, cleared, kept] =
            ["a", "b", "c", "d"].map(|name| keeper.lock(name).unwrap());
        assert!(provider.evict(&LockName::new("a").unwrap()));
        assert_lost(&evicted);

        let admin = provider.admin().unwrap();
        let held = admin.held(unlocked.name().into(), deadline).unwrap();
        assert!(admin.force_release(&held[0], deadline).unwrap());
        assert_lost(&unlocked);

        kept.renew().unwrap();
        provider.clear();
        assert_lost(&cleared);
        assert_lost(&kept);
    }
}

#[test]
fn host_in_the_url_is_refused() {
    let drivers = Drivers::new().with(MemoryDriver);
    for url in ["memory://host", "memory://host:1/x", "memory://user@host/"] {
        let error = drivers.open(&Config::from_url(url).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        assert!(error.to_string().contains("memory:NAME"), "{error}");
    }
}

#[test]
fn expired_lease_is_neither_renewed_nor_released() {
    // The engine knows whether a release is late, by the deadline of the guard.
    let open = |clock| Arc::new(MemoryProvider::with_clock(clock)) as _;
    expired_lease_is_refused(open, Released::Done);
}

#[test]
fn keepers_are_served_first_in_first_out() {
    let (_, clock) = manual_clock();
    let provider = MemoryProvider::with_clock(Arc::clone(&clock));
    let holder = keeper(&provider, &clock).lock("seat").unwrap();
    let (sender, order) = mpsc::channel();
    let mut threads = Vec::new();
    for number in 0..4 {
        let keeper = keeper(&provider, &clock);
        let sender = sender.clone();
        threads.push(thread::spawn(move || {
            let guard = keeper.lock("seat").unwrap();
            sender.send(number).unwrap();
            drop(guard);
        }));
        until("the waiter is queued", || {
            waiters(&provider, "seat") > number
        });
    }
    drop(holder);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn waiter_is_granted_the_name_when_the_lease_expires() {
    let (clock, shared) = manual_clock();
    let provider = MemoryProvider::with_clock(Arc::clone(&shared));
    let ttl = Duration::from_secs(10);
    let fixed = LeasePolicy::Fixed { ttl };
    let options = AcquireOptions::new().lease(fixed);
    let held = keeper(&provider, &shared)
        .acquire("seat", &options)
        .unwrap()
        .unwrap();
    let waiting = keeper(&provider, &shared);
    let thread = thread::spawn(move || waiting.lock("seat").unwrap().token());
    until("the waiter is queued", || waiters(&provider, "seat") == 1);
    clock.advance(ttl);
    assert!(thread.join().unwrap() > held.token());
    assert!(held.ensure_held().is_err());
}

#[test]
fn cancelled_and_timed_out_waiters_are_removed() {
    let (clock, shared) = manual_clock();
    let provider = MemoryProvider::with_clock(Arc::clone(&shared));
    let holder = keeper(&provider, &shared).lock("seat").unwrap();
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().cancel(&cancel);
    let waiting = keeper(&provider, &shared);
    let thread = thread::spawn(move || waiting.acquire("seat", &options).unwrap_err().kind());
    until("the waiter is queued", || waiters(&provider, "seat") == 1);
    cancel.cancel();
    assert_eq!(thread.join().unwrap(), ErrorKind::Cancelled);

    let waiting = keeper(&provider, &shared);
    let thread = thread::spawn(move || {
        let guard = waiting
            .try_lock_for("seat", Duration::from_secs(5))
            .unwrap();
        guard.is_none()
    });
    until("the waiter is queued", || waiters(&provider, "seat") == 1);
    clock.advance(Duration::from_secs(5));
    assert!(thread.join().unwrap());

    drop(holder);
    assert!(
        keeper(&provider, &shared)
            .try_lock("seat")
            .unwrap()
            .is_some()
    );
}

struct MemoryStore(MemoryProvider);

impl TestStore for MemoryStore {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self(MemoryProvider::with_clock(clock))
    }

    fn open(&self) -> Arc<dyn LockProvider> {
        Arc::new(self.0.clone())
    }

    fn assert_empty(&self) {
        assert_eq!(self.0.held(), []);
    }
}

mod modes {
    super::mode_cases!(super::MemoryStore);
}
