//! Several operations in one transaction.

use lockkeeper_core::StoreInfo;

use super::waiting::silent_waiter;
use super::*;
use crate::batched::Answer::{Busy, Failed, Granted, Lost, Released, Renewed};
use crate::batched::{
    Answer, acquire, attempt, attempt_until, names, release, renew, request, run,
};

const UNAVAILABLE: Answer = Failed(ErrorKind::Unavailable);
const UNKNOWN: Answer = Failed(ErrorKind::Unknown);

/// Attempts to acquire `seat`, by a batch.
fn try_in_batch(provider: &SqliteProvider) -> Vec<Answer> {
    let [seat] = names(["seat"]);
    run(provider, vec![attempt(&request(&seat))]).0
}

/// Returns the names that are locked.
fn locked(store: &TempStore) -> Vec<String> {
    let raw = store.raw();
    let mut rows = raw
        .prepare("SELECT name FROM lock WHERE name <> '' ORDER BY name")
        .unwrap();
    let names = rows.query_map((), |row| row.get(0)).unwrap();
    names.map(Result::unwrap).collect()
}

#[test]
fn grant_of_a_batch_is_listened_for() {
    let store = TempStore::new();
    let provider = store.provider();
    let holds = || store.files().iter().any(|file| file.contains("-holder-"));
    assert!(!holds());
    assert_eq!(try_in_batch(&provider), [Granted]);
    assert!(holds());
}

#[test]
fn attempt_of_a_batch_gets_a_name_whose_waiter_is_gone() {
    let store = TempStore::new();
    let provider = store.provider();
    let _held = acquire(&provider, ["seat"]);
    let attempts = || try_in_batch(&provider);
    assert_eq!(attempts(), [Busy]);
    store
        .raw()
        .execute(
            "UPDATE lock SET epoch = 0, reserved = 1 WHERE name = 'seat'",
            (),
        )
        .unwrap();
    assert_eq!(attempts(), [Granted]);
}

#[test]
fn attempt_after_its_deadline_is_not_granted() {
    let store = TempStore::new();
    let [seat] = names(["seat"]);
    let request = request(&seat);
    let late = attempt_until(&request, request.now());
    assert_eq!(run(&store.provider(), vec![late]).0, [UNAVAILABLE]);
    assert_eq!(locks(&store.raw()), 0);
}

#[test]
fn batch_waits_for_another_writer() {
    let store = TempStore::new();
    let provider = store.provider();
    let mut leases = acquire(&provider, ["kept", "lost", "done"]);
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE; DELETE FROM lock WHERE name = 'lost'")
        .unwrap();
    let before = provider.usage().unwrap().commands;
    let acting = provider.clone();
    let thread = thread::spawn(move || {
        let [kept, lost, done] = &mut leases;
        run(&acting, vec![renew(kept), renew(lost), release(done)]).0
    });
    until("the batch has retried", || {
        provider.usage().unwrap().commands > before + 10
    });
    raw.execute_batch("COMMIT").unwrap();
    assert_eq!(thread.join().unwrap(), [Renewed, Lost, Released]);
    assert_eq!(locked(&store), ["kept"]);
}

#[test]
fn batch_in_a_database_that_stays_locked_fails_as_the_single_verbs_do() {
    let store = TempStore::new();
    let provider = store.provider();
    let [mut kept, mut done] = acquire(&provider, ["kept", "done"]);
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let [seat] = names(["seat"]);
    let request = request(&seat);
    let batch = vec![attempt(&request), renew(&mut kept), release(&mut done)];
    let (found, _) = run(&provider, batch);
    assert_eq!(found, [UNAVAILABLE, UNKNOWN, UNKNOWN]);
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(locked(&store), ["done", "kept"]);
}

/// Carries out an attempt for `seat`, a renewal and a release in a database with this trigger.
fn batch_with_trigger(store: &TempStore, trigger: &str) -> Vec<Answer> {
    let provider = store.provider();
    let [mut kept, mut done] = acquire(&provider, ["kept", "done"]);
    store.raw().execute_batch(trigger).unwrap();
    let [seat] = names(["seat"]);
    let request = request(&seat);
    let batch = vec![renew(&mut kept), attempt(&request), release(&mut done)];
    let (found, _) = run(&provider, batch);
    // The failed transaction excludes no other process, although the provider is not used.
    store.raw().execute_batch("DROP TRIGGER seat").unwrap();
    assert_eq!(try_in_batch(&provider), [Granted]);
    found
}

#[test]
fn failure_of_one_operation_is_its_own_unless_it_ends_the_transaction() {
    let all_fail = (
        [UNKNOWN, Failed(ErrorKind::Incompatible), UNKNOWN],
        vec!["done", "kept", "seat"],
    );
    for (trigger, (answers, left)) in [
        (
            "CREATE TRIGGER seat BEFORE INSERT ON lock WHEN NEW.name = 'seat'
             BEGIN SELECT RAISE(ABORT, 'the attempt fails'); END",
            (
                [Renewed, Failed(ErrorKind::Incompatible), Released],
                vec!["kept", "seat"],
            ),
        ),
        (
            "CREATE TRIGGER seat BEFORE INSERT ON lock WHEN NEW.name = 'seat'
             BEGIN SELECT RAISE(ROLLBACK, 'the transaction fails'); END",
            all_fail.clone(),
        ),
        (
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER seat AFTER INSERT ON lock WHEN NEW.name = 'seat'
             BEGIN INSERT INTO child VALUES (1); END",
            all_fail,
        ),
    ] {
        let store = TempStore::new();
        assert_eq!(batch_with_trigger(&store, trigger), answers, "{trigger}");
        assert_eq!(locked(&store), left, "{trigger}");
    }
}

#[test]
fn release_in_a_batch_notifies_the_next_waiter() {
    use std::os::unix::net::UnixDatagram;
    let store = TempStore::new();
    let provider = store.provider();
    let [mut held] = acquire(&provider, ["seat"]);
    // A waiter that polls would get the name as well, later.
    let waiter = silent_waiter(&store);
    let wake = store.socket_prefix() + "waiter";
    let socket = UnixDatagram::bind(store.folder.path().join(&wake)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let raw = store.raw();
    raw.execute("UPDATE waiter SET wake = ?1", [wake]).unwrap();
    raw.execute("UPDATE lock SET contended = 1 WHERE name = 'seat'", ())
        .unwrap();
    let thread = thread::spawn(move || run(&provider, vec![release(&mut held)]).0);
    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
    let reserved = raw.query_row("SELECT reserved FROM lock WHERE name = 'seat'", (), |row| {
        row.get(0)
    });
    assert_eq!(reserved, Ok(waiter));
    assert_eq!(thread.join().unwrap(), [Released]);
}
