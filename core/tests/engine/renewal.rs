//! Renewals by the keeper and by hand.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    Clock, ErrorKind, HostInstant, LeasePolicy, LockGuard, ManualClock, Released, WaitOutcome,
};

use crate::answers::{Grants, Renewals};
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn lease_is_renewed_over_many_ttls() {
    let store = ScriptedStore::new();
    let guard = store.keeper().lock("a").unwrap();
    assert_eq!(guard.remaining(), 11 * SECOND, "the ttl less the margin");
    for _ in 0..20 {
        store.next_renewal("a");
        wait_until_renewed(&guard);
    }
    assert_eq!(guard.release().unwrap(), Released::Done);
}

#[test]
fn unknown_renewal_moves_no_deadline_and_is_repeated() {
    for how in [Renewals::Fail, Renewals::Unreachable, Renewals::Panic] {
        let store = ScriptedStore::new();
        let (keeper, events) = observed(store.builder());
        let guard = keeper.lock("a").unwrap();
        store.renewals("a", how);
        store.next_renewal("a");
        // The next renewal is counted from when the answer of this one is seen.
        events.expect(Event::RenewalUnknown);
        assert_eq!(guard.remaining(), 7 * SECOND, "{how:?}");
        store.renewals("a", Renewals::Work);
        store.next_renewal("a");
        wait_until_renewed(&guard);
    }
}

#[test]
fn poll_for_another_lease_renews_nothing_early() {
    let (store, keeper) = scripted();
    let renewed = keeper.lock("a").unwrap();
    // They end shortly before the renewal is due.
    let short = [("b", 3800), ("c", 4100)].map(|(name, ttl)| {
        let options = fixed(Duration::from_millis(ttl));
        keeper.acquire(name, &options).unwrap().unwrap()
    });
    for guard in &short {
        let (sender, called) = mpsc::channel();
        guard
            .lost_signal()
            .on_lost(move || sender.send(()).unwrap());
        store.clock.advance(guard.remaining());
        called.recv_timeout(LIMIT).unwrap();
    }
    assert_eq!(store.count("a", "renew"), 0);
    store.clock.advance(SECOND);
    store.wait_for("a", "renew", 1);
    wait_until_renewed(&renewed);
}

#[test]
fn lease_that_is_due_soon_is_renewed_along_with_one_that_is_due() {
    let (store, keeper) = scripted();
    let _due = keeper.lock("a").unwrap();
    store.clock.advance(SECOND / 2);
    let _soon = keeper.lock("b").unwrap();
    store.clock.advance(SECOND * 7 / 2);
    store.wait_for("a", "renew", 1);
    store.wait_for("b", "renew", 1);
}

#[test]
fn renewal_in_a_part_that_hangs_delays_none_in_another() {
    let (store, keeper) = batching();
    let [_far, near] = ["far", "near"].map(|name| keeper.lock(name).unwrap());
    store.renewals("far", Renewals::Hang);
    store.clock.advance(4 * SECOND);
    store.wait_for("far", "renew", 1);
    wait_until_renewed(&near);
    store.renewals("far", Renewals::Work);
}

#[test]
fn released_guard_is_not_renewed_and_its_signal_reports_the_release() {
    let (store, keeper) = scripted();
    let (gone, stays) = (keeper.lock("gone").unwrap(), keeper.lock("stays").unwrap());
    let signal = gone.lost_signal();
    gone.release().unwrap();
    assert_eq!(signal.wait(LIMIT), WaitOutcome::Released);
    store.next_renewal("stays");
    store.next_renewal("stays");
    assert_eq!(store.count("gone", "renew"), 0);
    assert!(!signal.is_lost() && stays.is_held());
}

#[test]
fn store_calls_that_hang_or_panic_cost_no_other_guard_its_lease() {
    let (store, keeper) = scripted();
    let bad = [
        ("h1", Renewals::Hang),
        ("h2", Renewals::Hang),
        ("p", Renewals::Panic),
    ];
    let bad_guards = bad.map(|(name, how)| {
        store.renewals(name, how);
        keeper.lock(name).unwrap()
    });
    let good = keeper.lock("good").unwrap();
    for _ in 0..4 {
        store.next_renewal("good");
        wait_until_renewed(&good);
    }
    assert!(bad_guards.iter().all(|guard| !guard.is_held()));
    for (name, _) in bad {
        store.renewals(name, Renewals::Work);
    }
}

#[test]
fn parts_that_hang_have_few_threads_whatever_their_number() {
    const PARTS: usize = 20;
    const MAX_THREADS: usize = 16;
    let store = ScriptedStore::with_parts(PARTS);
    let keeper = store.keeper();
    let names: Vec<_> = (0..PARTS)
        .flat_map(|part| (0..4).map(move |number| format!("{part} {number}")))
        .collect();
    let lock = |name: &String| {
        store.renewals(name, Renewals::Hang);
        keeper.lock(name).unwrap()
    };
    let guards: Vec<_> = names.iter().map(lock).collect();
    let renewals = || -> Vec<_> {
        let all = names.iter().enumerate();
        all.filter(|(_, name)| store.count(name, "renew") > 0)
            .map(|(at, _)| at / 4)
            .collect()
    };
    store.clock.advance(4 * SECOND);
    eventually("renewals hang", || renewals().len() >= MAX_THREADS);
    for _ in 0..50 {
        give_time();
    }
    let hanging = renewals();
    assert_eq!(hanging.len(), MAX_THREADS);
    // No part has all of them.
    assert!(
        hanging.windows(3).all(|three| three[0] != three[2]),
        "{hanging:?}"
    );
    for name in &names {
        store.renewals(name, Renewals::Work);
    }
    drop(guards);
}

#[test]
fn backend_that_panics_at_a_renewal_by_hand_keeps_no_name() {
    let (store, keeper) = scripted();
    store.renewals("a", Renewals::Panic);
    let guard = keeper.lock("a").unwrap();
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Unknown);
    store.renewals("a", Renewals::Work);
    drop(guard);
    drop(keeper.lock("a").unwrap());
}

#[test]
fn idle_threads_renew_while_calls_hang() {
    let store = ScriptedStore::new();
    let due = Arc::new(AtomicU64::new(u64::MAX));
    let (go_on, stop) = mpsc::channel::<()>();
    let clock = {
        let (clock, due) = (store.clock.clone(), Arc::clone(&due));
        let (mut times, mut is_found) = (0, false);
        // The thread reads the clock twice a round: for its poll, and (with a mutex held) before it sleeps. It finds
        // what is due, once; then it stands still.
        HookedClock::new(&store, "lockkeeper-watch", move || {
            match times % 2 {
                0 if is_found => drop(stop.recv()),
                0 => is_found = clock.now().as_nanos() >= due.load(Ordering::SeqCst),
                _ => {}
            }
            times += 1;
        })
    };
    let keeper = store.builder().clock(clock).build().unwrap();
    let names =
        |kind: &str, count| -> Vec<_> { (0..count).map(|n| format!("{kind}{n}")).collect() };
    let set_all = |names: &[String], how| {
        for name in names {
            store.renewals(name, how);
        }
    };
    let lock = |names: &[String], how| -> Vec<LockGuard> {
        set_all(names, how);
        names
            .iter()
            .map(|name| keeper.lock(name).unwrap())
            .collect()
    };
    let wait_for_all = |names: &[String]| {
        for name in names {
            store.wait_for(name, "renew", 1);
        }
    };
    // As many as there can be threads.
    let first = names("first", 4);
    let guards = lock(&first, Renewals::Hang);
    store.clock.advance(4 * SECOND);
    wait_for_all(&first);
    set_all(&first, Renewals::Work);
    drop(guards);

    let (hanging, good) = (names("hanging", 3), names("good", 8));
    let guards = (lock(&hanging, Renewals::Hang), lock(&good, Renewals::Work));
    // If the test fails, it must not wait for the release of what hangs.
    let guards = ManuallyDrop::new(guards);
    let renewal = store.clock.now() + 4 * SECOND;
    due.store(renewal.as_nanos(), Ordering::SeqCst);
    store.clock.advance(4 * SECOND);
    wait_for_all(&good);
    drop(go_on);
    set_all(&hanging, Renewals::Work);
    drop(ManuallyDrop::into_inner(guards));
}

#[test]
fn release_waits_for_a_renewal_under_way_and_comes_after_it() {
    let store = ScriptedStore::new();
    let guard = store.keeper().lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    let release = thread::spawn(move || guard.release());
    store.renewals("a", Renewals::Work);
    assert_eq!(release.join().unwrap().unwrap(), Released::Done);
    assert_eq!(store.count("a", "release"), 1);
}

#[test]
fn release_stops_waiting_for_a_renewal_and_follows_it_later() {
    let store = ScriptedStore::new();
    let ttl = Duration::from_millis(120);
    let keeper = store.builder().lease(LeasePolicy::Renewed { ttl }).build();
    let keeper = keeper.unwrap();
    let guard = keeper.lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.clock.advance(ttl / 3);
    store.wait_for("a", "renew", 1);
    let signal = guard.lost_signal();
    let release = thread::spawn(move || guard.release());
    // Once the signal reports the release, only the release's own time limit counts.
    assert_eq!(signal.wait(LIMIT), WaitOutcome::Released);
    eventually("the release gives up", || {
        store.clock.advance(ttl);
        release.is_finished()
    });
    assert_fails(release.join().unwrap(), ErrorKind::Unknown);
    let again = spawn_acquire(&keeper, "a", forever());
    give_time();
    assert_eq!(store.count("a", "acquire"), 1, "it overtakes the release");
    store.renewals("a", Renewals::Work);
    store.wait_for("a", "release", 1);
    drop(granted(again));
}

#[test]
fn renewal_by_hand_moves_the_deadline_of_a_fixed_lease() {
    let store = ScriptedStore::new();
    let guard = store.keeper().acquire("a", &fixed(2 * SECOND));
    let guard = guard.unwrap().unwrap();
    store.clock.advance(SECOND);
    guard.renew().unwrap();
    assert_eq!(guard.remaining(), Duration::from_millis(1800));
    store.renewals("a", Renewals::Fail);
    store.clock.advance(SECOND);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(guard.remaining(), Duration::from_millis(800));
    store.renewals("a", Renewals::Lost);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn renewal_by_hand_waits_for_the_renewal_under_way_and_renews_after_it() {
    let store = ScriptedStore::new();
    let guard = store.keeper().lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    thread::scope(|scope| {
        let by_hand = scope.spawn(|| guard.renew());
        // The keeper's renewal has no answer. The one by hand gets an answer of its own.
        store.renewals("a", Renewals::Fail);
        assert_fails(by_hand.join().unwrap(), ErrorKind::Unknown);
    });
    assert_eq!(guard.remaining(), 7 * SECOND);
    store.renewals("a", Renewals::Work);
    guard.renew().unwrap();
    assert_eq!(guard.remaining(), 11 * SECOND);

    // It waits no longer than the guard is held.
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    thread::scope(|scope| {
        let by_hand = scope.spawn(|| guard.renew());
        store.clock.advance(11 * SECOND);
        assert_fails(by_hand.join().unwrap(), ErrorKind::Lost);
    });
    store.renewals("a", Renewals::Work);
}

#[test]
fn renewal_keeps_its_deadline_when_the_guard_is_released_meanwhile() {
    let store = ScriptedStore::new();
    let (sender, release) = mpsc::channel();
    // The renewal takes the lease, and then reads the clock once more.
    let (mut reads, held) = (0, Arc::new(Mutex::new(None::<LockGuard>)));
    let taken = Arc::clone(&held);
    let clock = HookedClock::new(&store, "lockkeeper-work", move || {
        reads += 1;
        if reads == 2 {
            let guard = taken.lock().unwrap().take().unwrap();
            let signal = guard.lost_signal();
            let _ = sender.send(thread::spawn(move || drop(guard)));
            assert_eq!(signal.wait(LIMIT), WaitOutcome::Released);
        }
    });
    let keeper = store.builder().clock(clock).build().unwrap();
    *held.lock().unwrap() = Some(keeper.lock("a").unwrap());
    store.clock.advance(4 * SECOND);
    store.wait_for("a", "renew", 1);
    store.set(|state| assert!(state.renewal_limit <= 11 * SECOND));
    release.recv_timeout(LIMIT).unwrap().join().unwrap();
}

#[test]
fn late_grant_is_confirmed_by_a_renewal() {
    let (store, keeper) = scripted();
    store.grants(Grants::Late(5 * SECOND));
    let guard = keeper.lock("a").unwrap();
    assert_eq!(store.count("a", "renew"), 1);
    assert_eq!(guard.remaining(), 11 * SECOND, "counted from the renewal");
    drop(guard);

    // The lease had ended when its grant was seen: the name is requested again in the time left.
    store.grants(Grants::Late(2 * SECOND));
    store.renewals("a", Renewals::Lost);
    let guard = keeper.lock("a").unwrap();
    assert_eq!(store.count("a", "acquire"), 3);
    drop(guard);

    // So does a single attempt: no other holder was seen.
    store.grants(Grants::Late(3 * SECOND / 2));
    assert!(keeper.try_lock("a").unwrap().is_some());
    assert_eq!(store.count("a", "acquire"), 5);
    store.set(|state| {
        let end = SECOND / 2;
        assert!(state.renewal_limit <= end, "not for the rest of a lease");
    });

    // Behind the end of the attempt, nothing is asked any more, and the grant is given back.
    let (renewed, released) = (store.count("a", "renew"), store.count("a", "release"));
    store.grants(Grants::Late(2 * SECOND));
    assert_fails(keeper.try_lock("a"), ErrorKind::Unavailable);
    assert_eq!(store.count("a", "renew"), renewed);
    store.wait_for("a", "release", released + 1);

    // Without an answer the grant is given back, and requested again by a wait.
    store.renewals("a", Renewals::Fail);
    let released = store.count("a", "release");
    store.grants(Grants::Late(2 * SECOND));
    let guard = keeper.lock("a").unwrap();
    assert_eq!(store.count("a", "release"), released + 1);
    // The release may reach the store after the next grant.
    store.set(|state| assert_ne!(state.owners.pop(), state.owners.pop()));
    store.renewals("a", Renewals::Work);
    drop(guard);
}

/// A clock that calls a hook whenever the thread of this name reads it.
struct HookedClock {
    inner: ManualClock,
    thread: &'static str,
    hook: Mutex<Box<dyn FnMut() + Send>>,
}

impl HookedClock {
    fn new(
        store: &ScriptedStore,
        thread: &'static str,
        hook: impl FnMut() + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner: store.clock.clone(),
            thread,
            hook: Mutex::new(Box::new(hook)),
        })
    }
}

impl std::fmt::Debug for HookedClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookedClock")
    }
}

impl Clock for HookedClock {
    fn now(&self) -> HostInstant {
        if thread::current().name() == Some(self.thread)
            && let Ok(mut hook) = self.hook.try_lock()
        {
            hook();
        }
        self.inner.now()
    }

    fn on_jump(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.on_jump(wake);
    }
}

/// The holder renews the lease itself at the time at which the keeper would.
#[test]
fn keeper_asks_the_store_for_nothing_if_no_lease_that_is_due_is_there() {
    let (store, keeper) = batching();
    let [guard, _other] = ["a", "far"].map(|name| keeper.lock(name).unwrap());
    store.renewals("a", Renewals::Hang);
    let by_hand = thread::spawn(move || guard.renew());
    store.wait_for("a", "renew", 1);
    // The keeper's threads renew the leases of the first part first.
    store.next_renewal("far");
    store.renewals("a", Renewals::Work);
    by_hand.join().unwrap().unwrap();
    store.set(|state| assert!(!state.batches.contains(&0), "{:?}", state.batches));
}
