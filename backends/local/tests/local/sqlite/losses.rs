//! Losses that a holder notices before its next renewal, which these tests do not wait for.

use lockkeeper_core::{LockName, WaitOutcome};

use super::processes::{spawn, spawn_test};
use super::*;

/// Long before the next renewal, a third of the ttl from now.
const LIMIT: Duration = Duration::from_secs(60);

/// Names the database for [`unlocking_child`] when it runs as another process.
const CHILD: &str = "TESTKIT_LOCAL_UNLOCK_FILE";

fn keeper_for_hours(provider: SqliteProvider) -> LockKeeper {
    let ttl = Duration::from_secs(3_600);
    LockKeeper::builder(Arc::new(provider))
        .lease(LeasePolicy::Renewed { ttl })
        .build()
        .unwrap()
}

fn unlock(keeper: &LockKeeper, name: &str) {
    let name = LockName::new(name).unwrap();
    let deadline = SystemClock.now() + LIMIT;
    let admin = keeper.admin().unwrap();
    let held = admin.held(Some(&name), deadline).unwrap();
    assert!(admin.force_release(&held[0], deadline).unwrap());
}

fn assert_lost(guard: &LockGuard) {
    assert_eq!(guard.lost_signal().wait(LIMIT), WaitOutcome::Lost);
}

/// Deletes the files whose names begin with `start`, as `rm START*` does.
fn delete_files(store: &TempStore, start: &str) {
    for file in store.files().iter().filter(|it| it.starts_with(start)) {
        fs::remove_file(store.folder.path().join(file)).unwrap();
    }
}

fn holder_sockets(store: &TempStore) -> usize {
    let files = store.files();
    files
        .iter()
        .filter(|file| file.contains("-holder-"))
        .count()
}

#[test]
fn unlocking_child() {
    if let Ok(path) = std::env::var(CHILD) {
        unlock(&keeper(open(Path::new(&path)).unwrap()), "seat");
    }
}

#[test]
fn holder_notices_at_once_that_another_process_unlocked() {
    let store = TempStore::new();
    let keeper = keeper_for_hours(store.provider());
    let [guard, other] = ["seat", "other"].map(|name| keeper.lock(name).unwrap());
    let mut child = spawn_test("sqlite::losses::unlocking_child", CHILD, &store);
    assert_lost(&guard);
    assert!(child.0.wait().unwrap().success());
    other.renew().unwrap();
}

#[test]
fn holder_notices_at_once_that_its_own_process_unlocked() {
    let store = TempStore::new();
    let guard = keeper_for_hours(store.provider()).lock("seat").unwrap();
    unlock(&store.keeper(), "seat");
    assert_lost(&guard);
}

#[test]
fn holder_notices_at_once_that_another_process_made_a_new_file() {
    // With all files, the sockets are deleted, too.
    for deleted in ["locks.db", ""] {
        let store = TempStore::new();
        let guard = keeper_for_hours(store.provider()).lock("seat").unwrap();
        delete_files(&store, deleted);
        let mut child = spawn(&store);
        child.wait_until_held();
        assert_lost(&guard);
    }
}

#[test]
fn holder_notices_deleted_files_when_its_process_opens_the_file() {
    let store = TempStore::new();
    let guard = keeper_for_hours(store.provider()).lock("seat").unwrap();
    delete_files(&store, "locks.db");
    drop(store.keeper());
    assert_lost(&guard);
}

#[test]
fn holder_notices_deleted_files_when_its_keeper_uses_them() {
    let store = TempStore::new();
    let keeper = keeper_for_hours(store.provider());
    let guard = keeper.lock("seat").unwrap();
    delete_files(&store, "locks.db");
    until("a use checks the files", || {
        drop(keeper.lock("other").unwrap());
        store.path().exists()
    });
    assert_lost(&guard);
}

#[test]
fn notifications_are_received_while_there_are_locks() {
    let store = TempStore::new();
    let keeper = keeper_for_hours(store.provider());
    assert_eq!(holder_sockets(&store), 0);
    drop(keeper.lock("seat").unwrap());
    assert_eq!(holder_sockets(&store), 1);
    until("the thread has ended", || holder_sockets(&store) == 0);
    let guard = keeper.lock("seat").unwrap();
    unlock(&store.keeper(), "seat");
    assert_lost(&guard);
    drop((keeper, guard));
    until("the provider has ended", || holder_sockets(&store) == 0);
}
