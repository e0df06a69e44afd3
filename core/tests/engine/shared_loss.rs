//! The reports to observers when a lease of several guards is lost.

use lockkeeper_core::LockGuard;

use crate::answers::Renewals;
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn loss_is_told_of_each_guard_that_still_has_the_lease() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder());
    let [first, second, third] = [(); 3].map(|()| keeper.lock_shared("a").unwrap());
    let tokens = [&first, &third].map(LockGuard::token);
    drop(second);
    store.renewals("a", Renewals::Lost);
    store.next_renewal("a");
    for token in tokens {
        events.expect(Event::Lost(token));
    }
    drop((first, third));
    assert!(events.is_empty());
}

/// The store has the name until the renewal comes back.
#[test]
fn lost_guards_that_end_while_the_lease_is_renewed_keep_no_name() {
    let (store, keeper) = scripted();
    let readers = [(); 2].map(|()| keeper.lock_shared("a").unwrap());
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    store.clock.advance(12 * SECOND);
    readers.iter().for_each(wait_until_lost);
    drop(readers);
    store.renewals("a", Renewals::Work);
    eventually("the releases should end", || keeper.pending_releases() == 0);
    drop(keeper.try_lock("a").unwrap().unwrap());
}
