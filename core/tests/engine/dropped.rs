//! Drops of guards: they wait for no store that does not answer, and no release is lost by that.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, Error, ErrorKind, FencingToken, LeasePolicy, LockGuard, LockKeeper,
    LockKeeperBuilder, ObservedLock, Observer, Released, Wait,
};

use crate::answers::{Grants, Releases, Renewals};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

type Answer = (String, Result<Released, ErrorKind>);

struct SendReleased(Mutex<Sender<Answer>>);

impl Observer for SendReleased {
    fn released(
        &self,
        lock: &ObservedLock<'_>,
        _: FencingToken,
        _: Duration,
        result: &Result<Released, Error>,
    ) {
        let result = result.as_ref().copied().map_err(Error::kind);
        let _ = self.0.lock().unwrap().send((lock.name.to_string(), result));
    }
}

/// The ends of guards that were reported to the observer.
pub(crate) struct Ends(Receiver<Answer>);

impl Ends {
    pub(crate) fn expect(&self, name: &str, result: Result<Released, ErrorKind>) {
        let end = self.0.recv_timeout(LIMIT).unwrap();
        assert_eq!(end, (name.to_owned(), result));
    }

    /// Waits for this many releases, of any names.
    pub(crate) fn expect_done(&self, count: usize) {
        for _ in 0..count {
            let end = self.0.recv_timeout(LIMIT).unwrap();
            assert_eq!(end.1, Ok(Released::Done), "{end:?}");
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.try_recv().is_err()
    }
}

pub(crate) fn observed(builder: LockKeeperBuilder) -> (LockKeeper, Ends) {
    let (sender, receiver) = mpsc::channel();
    let observer = Arc::new(SendReleased(Mutex::new(sender)));
    let keeper = builder.observer(observer).wait(Wait::Forever);
    (keeper.build().unwrap(), Ends(receiver))
}

/// Returns a store that takes one operation in a call, with a keeper that tells the ends of its guards.
fn scripted_with_ends() -> (Arc<ScriptedStore>, LockKeeper, Ends) {
    let store = ScriptedStore::new();
    let (keeper, ends) = observed(store.builder());
    (store, keeper, ends)
}

/// Returns a keeper whose leases do not end while a thread of the test begins, however fast the test moves the clock
/// meanwhile.
fn observed_with_long_leases(store: &Arc<ScriptedStore>) -> (LockKeeper, Ends) {
    let ttl = 365 * 24 * 3_600 * SECOND;
    observed(store.builder().lease(LeasePolicy::Renewed { ttl }))
}

#[test]
fn drop_releases_on_its_own_thread_while_the_store_answers() {
    let (store, keeper, ends) = scripted_with_ends();
    drop(keeper.lock("a").unwrap());
    assert_eq!(store.releases_by_keepers("a"), [false]);
    assert_eq!(ends.0.try_recv().unwrap().1, Ok(Released::Done));
    assert_eq!(keeper.pending_releases(), 0);
}

#[test]
fn release_that_fails_is_finished_before_the_name_is_requested_again() {
    for how in [
        Releases::Unreachable,
        Releases::PoolExhausted,
        Releases::Hang,
    ] {
        let (store, keeper, ends) = scripted_with_ends();
        let guard = keeper.lock("a").unwrap();
        store.releases(how);
        drop(guard);
        assert!(ends.is_empty(), "{how:?}");
        assert_eq!(keeper.pending_releases(), 1);
        let again = keeper.clone();
        let waiter = thread::spawn(move || again.lock("a").unwrap());
        store.wait_for("a", "release", 2);
        assert_eq!(store.count("a", "acquire"), 1, "{how:?}");
        store.releases(Releases::Work);
        ends.expect("a", Ok(Released::Done));
        assert!(waiter.join().unwrap().is_held());
        assert_eq!(store.count("a", "acquire"), 2);
        eventually("no release is left", || keeper.pending_releases() == 0);
    }
}

#[test]
fn releases_of_one_part_that_hang_do_not_hold_up_the_names_of_another() {
    let store = ScriptedStore::with_parts(2);
    let (keeper, _ends) = observed(store.builder());
    let names = ["0 a", "0 b", "0 c", "0 d", "0 e"];
    let guards = lock_each(&keeper, names);
    store.releases(Releases::Hang);
    drop(guards);
    // A thread of the keeper frees what the lost reply may have granted.
    store.grants(Grants::ReplyLost { then_works: false });
    assert_fails(keeper.try_lock("1 f"), ErrorKind::Unknown);
    store.wait_for("1 f", "abandon", 1);
    store.releases(Releases::Work);
    store.grants(Grants::Work);
    drop(keeper.lock("1 f").unwrap());
}

#[test]
fn drop_asks_on_its_own_thread_again_once_the_store_answers() {
    let (store, keeper, ends) = scripted_with_ends();
    let [a, b] = lock_each(&keeper, ["a", "b"]);
    store.releases(Releases::Hang);
    drop(a);
    store.wait_for("a", "release", 2);
    assert_eq!(store.releases_by_keepers("a"), [false, true]);
    // Answers to other requests say nothing about releases.
    store.clock.advance(Duration::from_millis(80));
    drop(keeper.lock("c").unwrap());
    store.wait_for("c", "release", 1);
    assert_eq!(store.releases_by_keepers("c"), [true]);
    store.releases(Releases::Work);
    ends.expect_done(2);
    drop(b);
    assert_eq!(store.releases_by_keepers("b"), [false]);
}

#[test]
fn drop_of_a_set_asks_once_and_each_name_is_released_and_reported() {
    let store = ScriptedStore::with_batches();
    let (keeper, ends) = observed(store.builder());
    let guards = keeper.lock_all(["a", "b", "c"]).unwrap();
    store.releases(Releases::Hang);
    drop(guards);
    store.wait_for("c", "release", 1);
    assert!(ends.is_empty());
    assert_eq!(keeper.pending_releases(), 3);
    store.set(|state| assert!(state.batches.starts_with(&[3, 3])));
    store.releases(Releases::Work);
    let mut names = ["a", "b", "c"].map(|_| {
        let (name, result) = ends.0.recv_timeout(LIMIT).unwrap();
        assert_eq!(result, Ok(Released::Done));
        name
    });
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);
    drop(keeper.lock_all(["a", "b", "c"]).unwrap());
    ends.expect_done(names.len());
    assert!(ends.is_empty());
}

#[test]
fn drop_of_a_set_with_a_lost_name_releases_the_others() {
    let store = ScriptedStore::with_batches();
    let (keeper, ends) = observed(store.builder());
    let guards = keeper.lock_all(["a", "b", "c"]).unwrap();
    store.renewals("b", Renewals::Lost);
    store.next_renewal("b");
    eventually("the guards are lost", || !guards.is_held());
    // They wait for the renewals that have the leases.
    assert!(guards.renew().is_err());
    drop(guards);
    for _ in 0..3 {
        let (name, result) = ends.0.recv_timeout(LIMIT).unwrap();
        let found = match name.as_str() {
            "b" => Released::AlreadyLost,
            _ => Released::Done,
        };
        assert_eq!(result, Ok(found), "{name}");
    }
}

#[test]
fn drop_of_a_lost_guard_leaves_the_store_to_the_keepers_threads() {
    let (store, keeper, ends) = scripted_with_ends();
    let by_clock = keeper.acquire("a", &fixed(2 * SECOND)).unwrap().unwrap();
    let by_store = keeper.lock("b").unwrap();
    store.renewals("b", Renewals::Lost);
    store.next_renewal("b");
    wait_until_lost(&by_store);
    for (guard, name) in [(by_clock, "a"), (by_store, "b")] {
        drop(guard);
        ends.expect(name, Ok(Released::AlreadyLost));
        assert_eq!(store.releases_by_keepers(name), [true]);
    }
    // Also if the drop is what notices the loss, and a callback locks the name again.
    let guard = keeper.acquire("c", &fixed(2 * SECOND)).unwrap().unwrap();
    let (again, (sender, called)) = (keeper.clone(), mpsc::channel());
    guard.lost_signal().on_lost(move || {
        // The store has the lease until the drop, which may come after this.
        eventually("the name is free", || again.lock("c").is_ok());
        let _ = sender.send(());
    });
    store.clock.advance(2 * SECOND);
    drop(guard);
    called.recv_timeout(LIMIT).unwrap();
}

#[test]
fn name_of_a_lost_guard_is_not_requested_before_its_release_has_ended() {
    let ends: [fn(LockGuard); 2] = [drop, |guard| drop(guard.release())];
    for end in ends {
        let (store, keeper) = scripted();
        let guard = keeper.acquire("a", &fixed(12 * SECOND)).unwrap().unwrap();
        let (sender, told) = mpsc::channel();
        guard
            .lost_signal()
            .on_lost(move || sender.send(()).unwrap());
        store.clock.advance(12 * SECOND);
        // The name is taken from the guard before.
        told.recv_timeout(LIMIT).unwrap();
        store.releases(Releases::Hang);
        let ending = thread::spawn(move || end(guard));
        store.wait_for("a", "release", 1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| keeper.try_lock_for("a", SECOND));
            while !waiting.is_finished() {
                store.clock.advance(SECOND / 10);
                thread::yield_now();
            }
            assert_fails(waiting.join().unwrap(), ErrorKind::Unavailable);
        });
        assert_eq!(store.count("a", "acquire"), 1);
        store.releases(Releases::Work);
        ending.join().unwrap();
        drop(keeper.lock("a").unwrap());
    }
}

#[test]
fn drop_does_not_wait_for_the_renewal_that_has_the_lease() {
    let (store, keeper, ends) = scripted_with_ends();
    let guard = keeper.lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    drop(guard);
    assert_eq!(
        (store.count("a", "release"), keeper.pending_releases()),
        (0, 1)
    );
    assert!(ends.is_empty());
    store.renewals("a", Renewals::Work);
    ends.expect("a", Ok(Released::Done));
    assert_eq!(store.count("a", "release"), 1);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn releases_that_hang_delay_no_renewal() {
    let (store, keeper, ends) = scripted_with_ends();
    let names = ["a", "b", "c", "d", "e", "f"];
    let hanging = lock_each(&keeper, names);
    let good = keeper.lock("good").unwrap();
    store.releases(Releases::Hang);
    drop(hanging);
    for name in &names[..4] {
        store.wait_for(name, "release", 1);
    }
    for _ in 0..2 {
        store.next_renewal("good");
        wait_until_renewed(&good);
    }
    store.releases(Releases::Work);
    ends.expect_done(names.len());
}

#[test]
fn attempts_behind_a_release_that_fails_or_hangs_are_not_busy() {
    // Where the store refuses connections, an attempt ends while the clock stands still.
    for (how, step) in [
        (Releases::Unreachable, Duration::ZERO),
        (Releases::Hang, SECOND / 50),
    ] {
        let store = ScriptedStore::new();
        let (keeper, _ends) = observed_with_long_leases(&store);
        let guard = keeper.lock("a").unwrap();
        store.releases(how);
        drop(guard);
        for (wait, step) in [(Duration::ZERO, step), (SECOND, SECOND / 50)] {
            let waiting = spawn_acquire(&keeper, "a", AcquireOptions::new().wait(wait));
            eventually("the attempt ends", || {
                store.clock.advance(step);
                waiting.is_finished()
            });
            assert_fails(waiting.join().unwrap(), ErrorKind::Unavailable);
        }
        assert_eq!(store.count("a", "acquire"), 1, "{how:?}");
        store.releases(Releases::Work);
    }
}

#[test]
fn lost_reply_to_a_drop_is_unknown_where_the_lock_is_gone() {
    let (store, keeper, ends) = scripted_with_ends();
    for (how, end) in [
        (Releases::ReplyLost, Err(ErrorKind::Unknown)),
        (Releases::RequestLost, Ok(Released::Done)),
    ] {
        let guard = keeper.lock("a").unwrap();
        store.releases(how);
        drop(guard);
        ends.expect("a", end);
    }
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn lost_reply_to_a_drop_is_unknown_also_where_a_batch_repeats_the_release() {
    let store = ScriptedStore::with_batches();
    let (keeper, ends) = observed(store.builder());
    let guard = keeper.lock("a").unwrap();
    store.releases(Releases::ReplyLostLate);
    store.grants(Grants::Silent);
    thread::scope(|scope| {
        scope.spawn(|| drop(guard));
        store.wait_for("a", "release", 1);
        // A request that is under way has the repetition go with a batch.
        scope.spawn(|| drop(keeper.lock("b").unwrap()));
        store.wait_for("b", "acquire", 1);
        store.releases(Releases::Hang);
        // The batch with the repetition overtakes the other request.
        eventually("it is repeated", || {
            store.clock.advance(Duration::from_millis(5));
            store.count("a", "release") == 2
        });
        store.releases(Releases::Work);
        store.grants(Grants::Work);
    });
    let ends = [(); 2].map(|()| ends.0.recv_timeout(LIMIT).unwrap());
    let unknown = ("a".to_owned(), Err(ErrorKind::Unknown));
    assert!(ends.contains(&unknown), "{ends:?}");
    assert_eq!(store.count("a", "release"), 2);
}

#[test]
fn release_is_given_up_when_the_store_has_ended_the_lease() {
    let (store, keeper, ends) = scripted_with_ends();
    let guard = keeper.lock("a").unwrap();
    store.releases(Releases::Unreachable);
    drop(guard);
    store.wait_for("a", "release", 3);
    assert!(ends.is_empty());
    store.clock.advance(12 * SECOND);
    ends.expect("a", Err(ErrorKind::Unavailable));
    store.releases(Releases::Work);
    // The scripted store still holds the name: the answer comes from there.
    assert!(keeper.try_lock("a").unwrap().is_none());
}

#[test]
fn panic_of_the_backend_in_a_drop_during_a_panic_does_no_harm() {
    let (store, keeper, ends) = scripted_with_ends();
    for (how, end) in [
        (Releases::Panic, Err(ErrorKind::Unknown)),
        (Releases::RequestLost, Ok(Released::Done)),
    ] {
        let guard = keeper.lock(format!("{how:?}")).unwrap();
        store.releases(how);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            resume_unwind(Box::new("as the test wants"));
        }));
        assert!(caught.is_err());
        ends.expect(&format!("{how:?}"), end);
    }
    // On a thread of the keeper.
    let lost = keeper.acquire("b", &fixed(2 * SECOND)).unwrap().unwrap();
    store.clock.advance(2 * SECOND);
    store.releases(Releases::Panic);
    drop(lost);
    ends.expect("b", Err(ErrorKind::Unknown));
    eventually("no release is left", || keeper.pending_releases() == 0);
}

#[test]
fn last_keeper_waits_for_releases_and_loses_none_that_hangs() {
    let (store, keeper, ends) = scripted_with_ends();
    let [a, b] = lock_each(&keeper, ["a", "b"]);
    store.releases(Releases::Hang);
    drop(a);
    store.wait_for("a", "release", 2);
    let clone = keeper.clone();
    drop(clone);
    let dropping = thread::spawn(move || drop(keeper));
    store.releases(Releases::Work);
    dropping.join().unwrap();
    assert_eq!(ends.0.try_recv().unwrap(), ("a".into(), Ok(Released::Done)));

    // Neither waits forever. A guard that ends the keeper leaves its release to the keeper's threads.
    store.releases(Releases::Hang);
    drop(b);
    store.wait_for("b", "release", 2);
    assert!(Arc::strong_count(&store) > 1, "a thread still has it");
    store.releases(Releases::Work);
    ends.expect("b", Ok(Released::Done));
    eventually("the store is closed", || Arc::strong_count(&store) == 1);

    let (keeper, ends) = observed(store.builder());
    let guard = keeper.lock("c").unwrap();
    store.releases(Releases::Hang);
    drop(guard);
    drop(keeper);
    assert!(ends.is_empty());
    store.releases(Releases::Work);
    ends.expect("c", Ok(Released::Done));
}

#[test]
fn release_that_is_left_at_the_end_asks_once_more() {
    let (store, keeper, ends) = scripted_with_ends();
    let guard = keeper.lock("a").unwrap();
    drop(keeper);
    store.releases(Releases::Unreachable);
    drop(guard);
    // Without a keeper nothing is repeated, so the store can be closed.
    ends.expect("a", Err(ErrorKind::Unavailable));
    eventually("the store is closed", || Arc::strong_count(&store) == 1);
}

#[test]
fn waiting_acquisition_and_release_ride_an_outage_out_together() {
    let (store, keeper, ends) = scripted_with_ends();
    let guard = keeper.lock("a").unwrap();
    store.releases(Releases::Unreachable);
    store.grants(Grants::Unreachable(Duration::ZERO));
    let other = keeper.clone();
    let waiter = thread::spawn(move || other.lock("b").unwrap());
    store.wait_for("b", "acquire", 2);
    drop(guard);
    store.wait_for("a", "release", 1);
    assert!(store.releases_by_keepers("a").iter().all(|by| *by));
    store.releases(Releases::Work);
    store.grants(Grants::Work);
    ends.expect("a", Ok(Released::Done));
    drop(waiter.join().unwrap());
}

/// A release waits for the end of its part's outage.
#[test]
fn releases_that_wait_for_many_parts_leave_threads_for_the_others() {
    const PARTS: usize = 16;
    let store = ScriptedStore::with_parts(PARTS + 1);
    let keeper = store.keeper();
    let lock = |name: &str| keeper.lock(name).unwrap();
    let names = (0..PARTS).flat_map(|part| [0, 1].map(|number| format!("{part} {number}")));
    let guards: Vec<_> = names.map(|name| lock(&name)).collect();
    let good = format!("{PARTS} good");
    let other = lock(&good);
    store.releases(Releases::Unreachable);
    drop(guards);
    eventually("each part has an outage", || {
        (0..PARTS).all(|part| {
            let released = |number| store.count(&format!("{part} {number}"), "release");
            released(0) + released(1) > 0
        })
    });
    store.next_renewal(&good);
    store.releases(Releases::Work);
    assert!(other.is_held());
}
