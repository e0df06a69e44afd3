//! What a provider does about leases that it may no longer have, on a store in the memory of this process.

#![allow(clippy::expect_used, clippy::unwrap_used, unreachable_pub, dead_code)]

mod map_store;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    Clock as _, ErrorKind, LeasePolicy, LockKeeper, LockName, Mode, SystemClock, WaitOutcome,
};
use lockkeeper_register::{Call, Key, Read, RegisterProvider, RegisterStore as _, Version, Write};

use map_store::{Faults, Map, MapStore};

/// A limit far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn keeper(map: &Arc<Map>, ttl: Duration) -> LockKeeper {
    let store = MapStore::new(map, "shop");
    let provider = RegisterProvider::new(store, Arc::new(SystemClock)).unwrap();
    let lease = LeasePolicy::Renewed { ttl };
    let builder = LockKeeper::builder(Arc::new(provider));
    builder.lease(lease).build().unwrap()
}

fn call() -> Call<'static> {
    Call::until(SystemClock.now() + LIMIT)
}

/// Returns the key of the lock `a`.
fn lock_a() -> Key {
    Key::of(&LockName::new("a").unwrap(), Mode::Exclusive)
}

/// Writes an entry as another program does.
fn put(store: &MapStore, key: &Key, seen: Option<Version>, text: &str) {
    let write = Write {
        key,
        seen,
        session: None,
        also: None,
        value: Some(text),
    };
    store.write(&[write], call()).unwrap();
}

/// The renewals would come after 20 minutes.
#[test]
fn acquisition_that_finds_the_session_ended_tells_its_other_holders() {
    let map = Arc::new(Map::new(false, Faults::default()));
    let keeper = keeper(&map, Duration::from_secs(3_600));
    let guards = ["a", "b"].map(|name| keeper.lock(name).unwrap());
    map.wipe();
    let next = keeper.lock("c").unwrap();
    for guard in &guards {
        let lost = guard.lost_signal();
        assert_eq!(lost.wait(LIMIT), WaitOutcome::Lost);
    }
    assert!(next.is_held());
}

/// Other leases of the keeper keep its session, and so all that was written with it.
#[test]
fn resumption_without_a_reply_leaves_a_lease_that_ends() {
    let map = Arc::new(Map::new(false, Faults::default()));
    let ttl = Duration::from_secs(1);
    let [first, second, rival] = [(); 3].map(|()| keeper(&map, ttl));
    let _beside = second.lock("beside").unwrap();
    let ticket = first.lock("a").unwrap().detach().unwrap();
    map.set(|faults| faults.loses_replies = true);
    let error = second.resume(&ticket).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    map.set(|faults| faults.loses_replies = false);
    let granted = rival.try_lock_for("a", LIMIT).unwrap();
    assert!(granted.is_some(), "the lease does not end");
}

/// Waiters behind it come and go meanwhile, and so the entry has other versions.
#[test]
fn first_waiter_that_does_not_take_a_free_name_is_skipped() {
    let map = Arc::new(Map::new(false, Faults::default()));
    let (store, call) = (MapStore::new(&map, "shop"), call());
    let session = store.open_session(2 * LIMIT, call).unwrap();
    let text = r#"{"v":1,"k":"lock/a","e":1,"q":[{"o":"stopped-1","m":"x","s":""}]}"#;
    let text = text.replace(r#""s":"""#, &format!(r#""s":"{session}""#));
    put(&store, &lock_a(), None, &text);
    let keepers = [(); 2].map(|()| keeper(&map, LIMIT));
    thread::scope(|scope| {
        for keeper in &keepers {
            scope.spawn(|| {
                let wait = Duration::from_millis(100);
                while keeper.try_lock_for("a", wait).unwrap().is_none() {
                    assert!(SystemClock.now() < call.deadline, "it is not skipped");
                }
            });
        }
    });
}

/// It has joined the queue again, and is the first waiter anew.
#[test]
fn waiter_that_was_skipped_has_its_time_again() {
    let map = Arc::new(Map::new(false, Faults::default()));
    let (store, key, call) = (MapStore::new(&map, "shop"), lock_a(), call());
    let session = store.open_session(2 * LIMIT, call).unwrap();
    let queue = format!(r#""q":[{{"o":"slow-1","m":"x","s":"{session}"}}]}}"#);
    let text = format!(r#"{{"v":1,"k":"lock/a","e":1,{queue}"#);
    put(&store, &key, None, &text);
    let keepers = [(); 2].map(|()| keeper(&map, LIMIT));
    let try_all = || keepers.iter().find_map(|it| it.try_lock("a").unwrap());
    let guard = loop {
        if let Some(guard) = try_all() {
            break guard;
        }
        assert!(SystemClock.now() < call.deadline, "it is not skipped");
    };
    let read = Read {
        keys: &[&key],
        ..Read::default()
    };
    let held = store.read(&read, call).unwrap().entries.remove(0).unwrap();
    let text = held.value.strip_suffix('}').unwrap();
    put(&store, &key, Some(held.version), &format!("{text},{queue}"));
    guard.release().unwrap();
    assert!(try_all().is_none(), "it is skipped at once");
}

#[test]
fn floor_of_another_version_is_told() {
    let map = Arc::new(Map::new(false, Faults::default()));
    let store = MapStore::new(&map, "shop");
    put(&store, &Key::of_namespace("floor"), None, r#"{"v":2}"#);
    let error = keeper(&map, LIMIT).try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
}
