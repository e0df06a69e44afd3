//! The reports to observers when a lease of several guards is lost.

use lockkeeper_core::LockGuard;

use crate::answers::Renewals;
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;

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
