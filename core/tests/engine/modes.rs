//! Shared locks and permits.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind, LockGuard, Mode, Released, WaitOutcome};

use crate::answers::{Grants, Releases, Renewals};
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn readers_of_a_process_share_a_lease_and_the_last_one_releases_it() {
    let (store, keeper) = scripted();
    let readers: Vec<_> = (0..3).map(|_| keeper.lock_shared("a").unwrap()).collect();
    assert!(readers.is_sorted_by_key(LockGuard::token));
    assert!(keeper.try_lock("a").unwrap().is_none());
    assert_eq!(store.count("a", "acquire"), 1);
    let signals: Vec<_> = readers.iter().map(LockGuard::lost_signal).collect();
    for reader in readers {
        assert_eq!(store.count("a", "release"), 0);
        assert_eq!(reader.release().unwrap(), Released::Done);
    }
    assert_eq!(store.count("a", "release"), 1);
    for signal in signals {
        assert_eq!(signal.wait(SECOND), WaitOutcome::Released);
    }
    assert_eq!(keeper.lock("a").unwrap().mode(), Mode::Exclusive);
}

#[test]
fn signal_of_a_reader_that_has_ended_does_not_report_the_loss_of_the_others() {
    let (store, keeper) = scripted();
    let [first, second, third] = [(); 3].map(|()| keeper.lock_shared("a").unwrap());
    let signals = [&first, &second, &third].map(LockGuard::lost_signal);
    drop(second);
    store.renewals("a", Renewals::Lost);
    store.next_renewal("a");
    eventually("the loss is reported", || signals[0].is_lost());
    assert!(!signals[1].is_lost());
    assert!(signals[2].is_lost());
    assert_eq!(first.release().unwrap(), Released::AlreadyLost);
    assert_eq!(third.release().unwrap(), Released::AlreadyLost);
}

#[test]
fn readers_behind_a_writer_wait_and_then_share() {
    let (store, keeper) = scripted();
    let writer = keeper.lock("a").unwrap();
    thread::scope(|scope| {
        let reader = || scope.spawn(|| keeper.lock_shared("a").unwrap());
        let readers = [reader(), reader()];
        give_time();
        assert!(keeper.try_lock_shared("a").unwrap().is_none());
        let token = writer.token();
        drop(writer);
        for reader in readers {
            assert!(reader.join().unwrap().token() > token);
        }
    });
    assert!(store.count("a", "acquire") <= 3);
    drop(keeper.lock("a").unwrap());
}

#[test]
fn reader_beyond_the_bounds_gets_a_lease_of_its_own() {
    let store = ScriptedStore::new();
    let keeper = store.builder().handover_max(1).build().unwrap();
    let readers: Vec<_> = (0..4)
        .map(|_| keeper.try_lock_shared("a").unwrap().unwrap())
        .collect();
    assert_eq!(store.count("a", "acquire"), 2);
    drop(readers);
    assert_eq!(store.count("a", "release"), 2);
    // So does one that wants another lease.
    let reader = keeper.lock_shared("a").unwrap();
    let options = fixed(SECOND).mode(Mode::Shared).wait(Duration::ZERO);
    assert!(keeper.acquire("a", &options).unwrap().is_some());
    assert!(reader.is_held());
    // And one that wants it for another longest time.
    let requests = store.count("a", "acquire");
    let mut readers = vec![reader];
    for (max_hold, more) in [(60 * SECOND, 1), (60 * SECOND, 1), (50 * SECOND, 2)] {
        let options = AcquireOptions::new().mode(Mode::Shared).max_hold(max_hold);
        readers.push(keeper.acquire("a", &options).unwrap().unwrap());
        assert_eq!(store.count("a", "acquire"), requests + more);
    }
}

#[test]
fn permits_have_slots_and_pass_from_thread_to_thread() {
    let (store, keeper) = scripted();
    let semaphore = keeper.semaphore("a", 2).unwrap();
    let first = semaphore.acquire().unwrap();
    let second = semaphore.try_acquire().unwrap().unwrap();
    assert_eq!((first.slot(), second.slot()), (0, 1));
    assert!(semaphore.try_acquire().unwrap().is_none());
    let requests = store.count("a", "acquire");
    let token = first.token();
    thread::scope(|scope| {
        let third = scope.spawn(|| semaphore.acquire().unwrap());
        give_time();
        drop(first);
        let third = third.join().unwrap();
        assert_eq!(third.slot(), 0);
        assert!(third.token() > token);
    });
    assert!(store.count("a", "acquire") <= requests + 1);
    assert_eq!(second.release().unwrap(), Released::Done);
    assert_eq!(semaphore.acquire().unwrap().slot(), 0);
}

#[test]
fn permits_need_one_limit_and_the_lock_of_the_name_is_another_thing() {
    let (_store, keeper) = scripted();
    let permit = keeper.semaphore("a", 2).unwrap().acquire().unwrap();
    let lock = keeper.try_lock("a").unwrap().unwrap();
    let other = keeper.semaphore("a", 3).unwrap();
    thread::scope(|scope| {
        let same = keeper.semaphore("a", 2).unwrap();
        let second = same.acquire().unwrap();
        let waiting = scope.spawn(move || drop(same.acquire().unwrap()));
        give_time();
        // Also behind a thread that waits.
        let refused = other.acquire().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LimitMismatch);
        drop(second);
        waiting.join().unwrap();
    });
    let refused = other.try_acquire().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitMismatch);
    assert!(refused.to_string().contains("of 3"), "{refused}");
    drop(permit);
    assert_eq!(other.acquire().unwrap().slot(), 0);
    drop(lock);

    for limit in [0, lockkeeper_core::MAX_PERMITS + 1] {
        let refused = keeper.semaphore("a", limit).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidLimit);
    }
}

#[test]
fn waiting_permits_cost_no_request_each() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder());
    let semaphore = keeper.semaphore("a", 2).unwrap();
    let held = [(); 2].map(|()| semaphore.acquire().unwrap());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| drop(semaphore.acquire().unwrap()));
            events.expect(Event::Contended);
        }
        drop(held);
    });
    assert!(store.count("a", "acquire") <= 4);
    let options = AcquireOptions::new().wait(Duration::ZERO);
    assert!(semaphore.acquire_with(&options).unwrap().is_some());
}

/// It waits in the store, which does not tell it every moment that there is a holder.
#[test]
fn release_that_fails_says_nothing_of_a_waiting_writer() {
    let (store, keeper) = scripted();
    let reader = keeper.lock_shared("a").unwrap();
    store.grants(Grants::Waits);
    let writing = spawn_acquire(&keeper, "a", forever());
    store.wait_for("a", "acquire", 2);
    assert!(keeper.try_lock("a").unwrap().is_none());
    store.releases(Releases::Unreachable);
    drop(reader);
    store.wait_for("a", "release", 2);
    store.releases(Releases::Work);
    eventually("the release should end", || {
        store.clock.advance(SECOND / 10);
        keeper.pending_releases() == 0
    });
    let tried = thread::scope(|scope| {
        let trying = scope.spawn(|| keeper.try_lock("a"));
        eventually("it should have an answer", || {
            store.clock.advance(SECOND / 10);
            trying.is_finished()
        });
        trying.join().unwrap()
    });
    assert!(tried.unwrap().is_none());
    store.grants(Grants::Work);
    drop(granted(writing));
}
