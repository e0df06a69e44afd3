//! Leases that are kept for the next thread after their guard has ended.

use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind, LockKeeper, Released};

use crate::scripted_store::{SECOND, ScriptedStore, eventually, fixed};

const LINGER: Duration = Duration::from_millis(5);

fn lingering(store: &std::sync::Arc<ScriptedStore>) -> LockKeeper {
    store.builder().linger(LINGER).build().unwrap()
}

#[test]
fn lingering_lease_serves_the_next_thread_without_the_store() {
    let store = ScriptedStore::new();
    let keeper = lingering(&store);
    let first = keeper.lock("a").unwrap();
    let (token, signal) = (first.token(), first.lost_signal());
    assert_eq!(first.release().unwrap(), Released::Done);
    assert!(!signal.is_lost());
    let second = keeper.try_lock("a").unwrap().unwrap();
    assert!(second.token() > token);
    assert!(second.is_held());
    drop(second);
    assert_eq!(store.count("a", "acquire"), 1);
    assert_eq!(store.count("a", "release"), 0);
    store.clock.advance(LINGER);
    store.wait_for("a", "release", 1);
    drop(keeper.lock("a").unwrap());
    assert_eq!(store.count("a", "acquire"), 2);
}

#[test]
fn lease_does_not_linger_unless_asked() {
    let store = ScriptedStore::new();
    let keeper = store.keeper();
    drop(keeper.lock("a").unwrap());
    assert_eq!(store.count("a", "release"), 1);
    let options = AcquireOptions::new().linger(LINGER);
    drop(keeper.acquire("a", &options).unwrap());
    assert_eq!(store.count("a", "release"), 1);
    // The thread that comes back names nothing, so this guard is the last.
    drop(keeper.lock("a").unwrap());
    assert_eq!(store.count("a", "acquire"), 2);
    assert_eq!(store.count("a", "release"), 2);
}

#[test]
fn lingering_lease_of_other_terms_goes_back_first() {
    let store = ScriptedStore::new();
    let keeper = lingering(&store);
    drop(keeper.lock("a").unwrap());
    let guard = keeper.acquire("a", &fixed(SECOND)).unwrap();
    assert_eq!(store.count("a", "release"), 1);
    assert_eq!(store.count("a", "acquire"), 2);
    // A fixed lease does not linger.
    drop(guard);
    assert_eq!(store.count("a", "release"), 2);
}

#[test]
fn lingering_keeps_the_bounds_of_handovers() {
    let store = ScriptedStore::new();
    let keeper = store.builder().linger(LINGER).handover_max(3);
    let keeper = keeper.build().unwrap();
    for _ in 0..8 {
        drop(keeper.lock("a").unwrap());
    }
    assert_eq!(store.count("a", "acquire"), 2);
    assert_eq!(store.count("a", "release"), 2);

    let store = ScriptedStore::new();
    let keeper = store.builder().linger(SECOND).handover_time(2 * LINGER);
    let keeper = keeper.build().unwrap();
    drop(keeper.lock("a").unwrap());
    store.clock.advance(2 * LINGER);
    store.wait_for("a", "release", 1);
}

#[test]
fn end_of_the_keeper_gives_lingering_leases_back() {
    let store = ScriptedStore::new();
    let keeper = lingering(&store);
    let held = keeper.lock("held").unwrap();
    drop(keeper.lock("a").unwrap());
    drop(keeper);
    assert_eq!(store.count("a", "release"), 1);
    // After the keeper's last guard, no thread can come back for the name.
    drop(held);
    assert_eq!(store.count("held", "release"), 1);

    let keeper = lingering(&store);
    drop(keeper.lock("b").unwrap());
    keeper.close();
    assert_eq!(store.count("b", "release"), 1);
}

#[test]
fn lingering_lease_goes_back_where_it_would_be_verified() {
    let store = ScriptedStore::new();
    let keeper = lingering(&store);
    drop(keeper.lock("a").unwrap());
    assert!(store.verify());
    store.wait_for("a", "release", 1);
    eventually("the name is free", || keeper.pending_releases() == 0);
    assert_eq!(store.count("a", "renew"), 0);
}

#[test]
fn linger_out_of_bounds_is_an_error() {
    let store = ScriptedStore::new();
    let error = store.builder().linger(2 * SECOND).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error:?}");
    let options = AcquireOptions::new().linger(2 * SECOND);
    let error = store.keeper().acquire("a", &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error:?}");
}
