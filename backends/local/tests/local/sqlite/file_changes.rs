//! Files that are deleted, replaced or shared while providers use them.

#[cfg(target_os = "linux")]
use std::time::Instant;

#[cfg(target_os = "linux")]
use super::processes::spawn;
use super::*;

#[test]
fn replaced_file_is_the_new_store() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let held = keeper.lock("seat").unwrap();
    let waiting = store.keeper();
    let waiter = thread::spawn(move || waiting.lock("seat").unwrap().token());
    let _other = keeper.lock("other").unwrap();
    let before = held.token();
    until("the waiter is queued", || waiters(&store.raw()) == 1);
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        fs::remove_file(store.folder.path().join(file)).unwrap();
    }
    // Finds no file, as another program would.
    let other = store.keeper();
    let taken = other.lock("seat").unwrap();
    assert!(taken.token() > before);
    until("the loss is noticed", || held.renew().is_err());
    assert!(!held.is_held());
    assert!(keeper.try_lock("seat").unwrap().is_none());
    // The older waiter must not use the queue entry of another waiter.
    let third = store.keeper();
    let next = thread::spawn(move || drop(third.lock("seat").unwrap()));
    until("both waiters are queued", || waiters(&store.raw()) == 2);
    let last = taken.token();
    taken.release().unwrap();
    assert!(waiter.join().unwrap() > last);
    next.join().unwrap();
}

/// The clock stands still: the files are not checked because time has passed.
#[test]
fn first_lock_after_a_deletion_is_in_a_new_file() {
    let store = TempStore::new();
    let (_, clock) = manual_clock();
    let keeper = LockKeeper::builder(store.provider_with_clock(Arc::clone(&clock)))
        .clock(clock)
        .build()
        .unwrap();
    for file in store.files() {
        fs::remove_file(store.folder.path().join(file)).unwrap();
    }
    let _held = keeper.lock("seat").unwrap();
    assert!(store.path().exists());
    assert_eq!(locks(&store.raw()), 1);
}

#[test]
fn deleted_file_is_created_again_unless_create_is_false() {
    let store = TempStore::new();
    let url = |query| format!("sqlite:{}{query}", store.path().display());
    let drivers = Drivers::new().with(SqliteDriver);
    let open = |query| {
        drivers
            .open(&Config::from_url(&url(query)).unwrap())
            .unwrap()
    };
    let (keeper, reader) = (open(""), open("?create=false"));
    let delete = || {
        for file in store.files() {
            fs::remove_file(store.folder.path().join(file)).unwrap();
        }
    };
    delete();
    until("the deletion is noticed", || {
        reader.try_lock("seat").is_err()
    });
    let mut files = store.files();
    files.retain(|file| !file.contains("-wake-"));
    assert_eq!(files, [""; 0]);
    // Or among its causes, where a release of the last round is still tried again.
    let error = format!("{:?}", reader.try_lock("seat").unwrap_err());
    assert!(error.contains("there is no file"), "{error}");
    until("the file exists again", || {
        drop(keeper.try_lock("seat").unwrap());
        store.path().exists()
    });
    drop(reader.try_lock("seat").unwrap().unwrap());
}

#[test]
fn waiter_replaces_its_deleted_socket() {
    let store = TempStore::new();
    let held = store.keeper().lock("seat").unwrap();
    let sockets = || {
        let mut files = store.files();
        files.retain(|file| file.contains("-wake-") && !file.contains("-holder-"));
        files
    };
    let waiting = store.keeper();
    let waiter = thread::spawn(move || waiting.lock("seat").unwrap().release().unwrap());
    until("the waiter is queued", || {
        waiters(&store.raw()) == 1 && sockets().len() == 1
    });
    let deleted = sockets();
    fs::remove_file(store.folder.path().join(&deleted[0])).unwrap();
    until("the waiter has a new socket", || sockets().len() == 1);
    assert_ne!(sockets(), deleted);
    drop(held);
    assert_eq!(waiter.join().unwrap(), Released::Done);
}

#[test]
fn socket_has_the_permissions_and_the_owner_of_the_file() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let store = TempStore::new();
    fs::write(store.path(), "").unwrap();
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o660)).unwrap();
    // As root, another user's file: its owner has to reach the sockets of root's waiters. Other users cannot give files away.
    let _ = chown(store.path(), Some(65_534), Some(65_534));
    let owner = fs::metadata(store.path()).unwrap().uid();
    let held = store.keeper().lock("seat").unwrap();
    let waiting = store.keeper();
    let waiter = thread::spawn(move || drop(waiting.lock("seat").unwrap()));
    until("the waiter is queued", || waiters(&store.raw()) == 1);
    let files = store.files();
    let sockets = files.iter().filter(|file| file.contains("-wake-"));
    let modes: Vec<_> = sockets
        .map(|socket| fs::metadata(store.folder.path().join(socket)).unwrap())
        .map(|data| (data.permissions().mode() & 0o777, data.uid()))
        .collect();
    // One for the waiter, and one for each keeper.
    assert_eq!(modes, [(0o660, owner); 3]);
    drop(held);
    waiter.join().unwrap();
}

/// Longer than the interval at which a provider checks that its files still exist.
#[cfg(target_os = "linux")]
const CHECK_INTERVAL: Duration = Duration::from_millis(60);

/// Deletes files, and waits until every provider checks its files at its next use.
#[cfg(target_os = "linux")]
fn delete(store: &TempStore, files: &[&str]) {
    for file in files {
        fs::remove_file(store.folder.path().join(file)).unwrap();
    }
    let began = Instant::now();
    until("the next check is due", || began.elapsed() > CHECK_INTERVAL);
}

#[cfg(target_os = "linux")]
fn assert_refused(answer: Result<impl std::fmt::Debug, Error>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("close that conn"), "{error}");
}

/// A connection of the application keeps the deleted file open.
#[cfg(target_os = "linux")]
#[test]
fn no_lock_is_granted_on_a_deleted_shm_file() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let raw = store.raw();
    assert_eq!(locks(&raw), 0);
    let held = keeper.lock("other").unwrap();
    delete(&store, &["locks.db-shm"]);
    let mut child = spawn(&store);
    child.wait_until_held();
    assert_refused(keeper.try_lock("seat"));
    assert_refused(open(&store.path()));
    assert_eq!(held.renew().unwrap_err().kind(), ErrorKind::Unknown);
    drop(raw);
    held.renew().unwrap();
    assert!(keeper.try_lock("seat").unwrap().is_none());
    drop(child);
    keeper.lock("seat").unwrap().release().unwrap();
}

/// A connection of the application keeps the deleted log open, and with it the index of that log.
#[cfg(target_os = "linux")]
#[test]
fn no_lock_is_granted_on_a_deleted_wal_file() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let raw = store.raw();
    assert_eq!(locks(&raw), 0);
    delete(&store, &["locks.db-wal"]);
    assert_refused(keeper.try_lock("seat"));
    drop(raw);
    let _held = keeper.lock("seat").unwrap();
    let _child = spawn(&store);
    until("the waiter is queued", || waiters(&store.raw()) == 1);
}

#[cfg(target_os = "linux")]
#[test]
fn idle_keepers_close_deleted_files() {
    let store = TempStore::new();
    let (keeper, idle) = (store.keeper(), store.keeper());
    drop(idle.lock("other").unwrap());
    delete(&store, &["locks.db-shm"]);
    let mut child = spawn(&store);
    child.wait_until_held();
    assert!(keeper.try_lock("seat").unwrap().is_none());
    assert!(idle.try_lock("seat").unwrap().is_none());
    drop(child);
    delete(&store, &["locks.db-wal"]);
    let _held = keeper.lock("seat").unwrap();
    assert!(idle.try_lock("seat").unwrap().is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn connection_to_a_deleted_database_does_not_block_the_new_one() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let raw = store.raw();
    assert_eq!(locks(&raw), 0);
    delete(&store, &["locks.db", "locks.db-wal", "locks.db-shm"]);
    let mut child = spawn(&store);
    child.wait_until_held();
    assert!(keeper.try_lock("seat").unwrap().is_none());
    assert_eq!(locks(&raw), 0, "the connection reads the deleted file");
}

#[test]
fn log_that_other_processes_made_long_is_truncated() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let raw = store.raw();
    raw.execute_batch("PRAGMA wal_autocheckpoint = 0; CREATE TABLE filler (bytes BLOB)")
        .unwrap();
    raw.execute("INSERT INTO filler VALUES (zeroblob(40000000))", ())
        .unwrap();
    let log = || {
        let log = fs::metadata(store.folder.path().join("locks.db-wal"));
        log.unwrap().len()
    };
    assert!(log() > 40_000_000);
    until("the log is short", || {
        drop(keeper.lock("seat").unwrap());
        log() < 1_000_000
    });
}
