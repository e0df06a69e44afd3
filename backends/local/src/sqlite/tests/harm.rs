//! What others do to the files while they are in use.

#[cfg(target_os = "linux")]
use std::time::Instant;

#[cfg(target_os = "linux")]
use super::processes::{spawn, wait_until_held};
#[cfg(target_os = "linux")]
use super::slot::PRESENCE;
use super::*;

#[test]
fn a_file_that_took_the_place_of_a_deleted_one_is_the_store() {
    let place = Place::new();
    let keeper = place.keeper();
    let held = keeper.lock("seat").unwrap();
    let waiting = place.keeper();
    let waiter = thread::spawn(move || waiting.lock("seat").unwrap().token());
    let _other = keeper.lock("other").unwrap();
    let before = held.token();
    until("it waits", || waiters(&place.raw()) == 1);
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        fs::remove_file(place.folder.path().join(file)).unwrap();
    }
    // As another program would: it finds no file.
    let other = place.keeper();
    let taken = other.lock("seat").unwrap();
    assert!(taken.token() > before);
    until("the loss is seen", || held.renew().is_err());
    assert!(!held.is_held());
    assert!(keeper.try_lock("seat").unwrap().is_none());
    // The one that has waited since before has no other's place in the line.
    let third = place.keeper();
    let next = thread::spawn(move || drop(third.lock("seat").unwrap()));
    until("both wait", || waiters(&place.raw()) == 2);
    let last = taken.token();
    taken.release().unwrap();
    assert!(waiter.join().unwrap() > last);
    next.join().unwrap();
}

#[test]
fn a_deleted_file_is_made_again_but_for_those_who_only_look() {
    let place = Place::new();
    let url = |query| format!("sqlite:{}{query}", place.path().display());
    let drivers = Drivers::new().with(SqliteDriver);
    let open = |query| {
        drivers
            .open(&Config::from_url(&url(query)).unwrap())
            .unwrap()
    };
    let (keeper, looks) = (open(""), open("?create=false"));
    let delete = || {
        for file in place.files() {
            fs::remove_file(place.folder.path().join(file)).unwrap();
        }
    };
    delete();
    until("it is missed", || looks.try_lock("seat").is_err());
    assert_eq!(place.files(), [""; 0]);
    let error = looks.try_lock("seat").unwrap_err();
    assert!(error.to_string().contains("there is no file"), "{error}");
    until("it is there again", || {
        drop(keeper.try_lock("seat").unwrap());
        place.path().exists()
    });
    drop(looks.try_lock("seat").unwrap().unwrap());
}

#[test]
fn a_waiter_whose_socket_was_deleted_makes_another() {
    let place = Place::new();
    let held = place.keeper().lock("seat").unwrap();
    let sockets = || {
        let mut files = place.files();
        files.retain(|file| file.contains("-wake-"));
        files
    };
    let waiting = place.keeper();
    let waiter = thread::spawn(move || waiting.lock("seat").unwrap().release().unwrap());
    until("it waits", || {
        waiters(&place.raw()) == 1 && sockets().len() == 1
    });
    let deleted = sockets();
    fs::remove_file(place.folder.path().join(&deleted[0])).unwrap();
    until("it can be rung again", || sockets().len() == 1);
    assert_ne!(sockets(), deleted);
    drop(held);
    assert_eq!(waiter.join().unwrap(), Released::Done);
}

#[cfg(unix)]
#[test]
fn whoever_may_write_the_file_may_ring() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    fs::write(place.path(), "").unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o660)).unwrap();
    let held = place.keeper().lock("seat").unwrap();
    let waiting = place.keeper();
    let waiter = thread::spawn(move || drop(waiting.lock("seat").unwrap()));
    until("it waits", || waiters(&place.raw()) == 1);
    let files = place.files();
    let socket = files.iter().find(|file| file.contains("-wake-")).unwrap();
    let mode = fs::metadata(place.folder.path().join(socket))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    drop(held);
    waiter.join().unwrap();
}

/// Deletes files, and returns when every provider checks its files at its next use.
#[cfg(target_os = "linux")]
fn delete(place: &Place, files: &[&str]) {
    for file in files {
        fs::remove_file(place.folder.path().join(file)).unwrap();
    }
    let began = Instant::now();
    until("the next check is due", || began.elapsed() > PRESENCE);
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
    let place = Place::new();
    let keeper = place.keeper();
    let raw = place.raw();
    assert_eq!(locks(&raw), 0);
    let held = keeper.lock("other").unwrap();
    delete(&place, &["locks.db-shm"]);
    let mut child = spawn(&place);
    wait_until_held(&mut child);
    assert_refused(keeper.try_lock("seat"));
    let path = place.path();
    assert_refused(SqliteProvider::open(path.to_str().unwrap(), "default"));
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
    let place = Place::new();
    let keeper = place.keeper();
    let raw = place.raw();
    assert_eq!(locks(&raw), 0);
    delete(&place, &["locks.db-wal"]);
    assert_refused(keeper.try_lock("seat"));
    drop(raw);
    let _held = keeper.lock("seat").unwrap();
    let _child = spawn(&place);
    until("it stands in line", || waiters(&place.raw()) == 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_deleted_file_is_closed_in_idle_keepers_too() {
    let place = Place::new();
    let (keeper, idle) = (place.keeper(), place.keeper());
    drop(idle.lock("other").unwrap());
    delete(&place, &["locks.db-shm"]);
    let mut child = spawn(&place);
    wait_until_held(&mut child);
    assert!(keeper.try_lock("seat").unwrap().is_none());
    assert!(idle.try_lock("seat").unwrap().is_none());
    drop(child);
    delete(&place, &["locks.db-wal"]);
    let _held = keeper.lock("seat").unwrap();
    assert!(idle.try_lock("seat").unwrap().is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn a_connection_to_a_deleted_database_does_not_block_the_new_one() {
    let place = Place::new();
    let keeper = place.keeper();
    let raw = place.raw();
    assert_eq!(locks(&raw), 0);
    delete(&place, &["locks.db", "locks.db-wal", "locks.db-shm"]);
    let mut child = spawn(&place);
    wait_until_held(&mut child);
    assert!(keeper.try_lock("seat").unwrap().is_none());
    assert_eq!(locks(&raw), 0, "it sees what was deleted");
}
