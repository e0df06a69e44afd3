//! Turns, queues and epochs on members that do not agree.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use lockkeeper_core::{LockProvider, SystemClock};

use crate::stores::Stores;
use crate::{HOUR, NEVER};

#[test]
fn attempt_leaves_nothing_where_a_majority_has_another_holder() {
    let stores = Stores::new();
    let _held = [stores.hold_at(1, None), stores.hold_at(2, None)];
    assert!(stores.attempt().expect("a majority answers").is_none());
    stores.until_free(0);
}

#[test]
fn attempt_gives_way_to_the_holder_of_the_first_member() {
    let stores = Stores::new();
    let first = stores.hold_at(0, None);
    assert!(stores.attempt().expect("a majority answers").is_none());
    // What the others have granted was given back.
    let rest = [stores.hold_at(1, None), stores.hold_at(2, None)];
    for (member, grant) in (1..).zip(rest) {
        stores.release_at(member, grant);
    }
    stores.release_at(0, first);
    assert!(stores.attempt().expect("a majority answers").is_some());
}

#[test]
fn minority_of_the_members_keeps_nothing_from_the_first_caller() {
    let stores = Stores::new();
    let _left = stores.hold_at(2, None);
    assert!(stores.attempt().expect("a majority answers").is_some());
}

/// Returns whether a caller waits in the queue of a member.
fn waits_at(stores: &Stores, member: usize) -> bool {
    let admin = stores.members[member].admin().expect("it lists its locks");
    let held = admin.held(None, NEVER).expect("the store answers");
    held.iter().any(|it| it.waiting == Some(1))
}

#[test]
fn waiter_goes_on_where_the_holder_lacks_the_first_member() {
    let stores = Stores::new();
    let held = [stores.hold_at(1, None), stores.hold_at(2, None)];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stores.wait());
        // The waiter gives the first member back, and waits at the second one.
        while !waits_at(&stores, 1) {
            thread::yield_now();
        }
        stores.until_free(0);
        let last = held.iter().map(|grant| grant.epoch).max();
        for (member, grant) in (1..).zip(held) {
            stores.release_at(member, grant);
        }
        let granted = waiting.join().expect("it does not panic");
        assert!(Some(granted.epoch) > last);
    });
}

#[test]
fn epoch_of_the_first_member_is_raised_above_those_of_the_others() {
    let stores = Stores::new();
    stores.raise(1, HOUR);
    let last = stores.raise(2, 2 * HOUR);
    let grant = stores.attempt().expect("a majority answers");
    assert!(grant.expect("it is free").epoch > last);
}

#[test]
fn first_member_grants_a_larger_epoch_where_a_majority_needs_it() {
    let stores = Stores::with_down(&[2], &Arc::default(), Arc::new(SystemClock));
    let last = stores.raise(1, HOUR);
    let grant = stores.attempt().expect("a majority answers");
    assert!(grant.expect("it is free").epoch > last);
}

#[test]
fn queue_moves_to_the_next_member_and_back() {
    let is_up = Arc::default();
    let stores = Stores::with_down(&[0], &is_up, Arc::new(SystemClock));
    let grant = stores.wait();
    let mut lease = grant.lease;
    is_up.store(true, Ordering::Relaxed);
    let quorum: &dyn LockProvider = &stores.quorum;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stores.wait());
        quorum
            .release(&mut lease, NEVER)
            .expect("a majority answers");
        let next = waiting.join().expect("it does not panic");
        assert!(next.epoch > grant.epoch);
    });
}
