//! Locked databases, and the queue of waiters.

use std::time::Instant;

use super::*;

#[test]
fn acquisition_waits_for_another_writer() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let options = AcquireOptions::new().wait(Duration::from_secs(60));
    let (started, has_started) = mpsc::channel();
    let before = keeper.usage().unwrap().commands;
    let acquiring = keeper.clone();
    let thread = thread::spawn(move || {
        started.send(()).unwrap();
        acquiring
            .acquire("seat", &options)
            .unwrap()
            .unwrap()
            .release()
            .unwrap()
    });
    has_started.recv().unwrap();
    until("the acquisition has retried", || {
        keeper.usage().unwrap().commands > before + 10
    });
    raw.execute_batch("COMMIT").unwrap();
    assert_eq!(thread.join().unwrap(), Released::Done);
}

#[test]
fn database_that_stays_locked_is_unavailable() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let held = keeper.lock("held").unwrap();
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let error = keeper.try_lock_for("seat", wait).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let shown = format!("{error:?}");
        assert!(shown.contains("another process keeps"), "{shown}");
    }
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    let acquiring = keeper.clone();
    let before = keeper.usage().unwrap().commands;
    let thread = thread::spawn(move || acquiring.acquire("seat", &options).unwrap_err().kind());
    until("the acquisition retries", || {
        keeper.usage().unwrap().commands > before + 10
    });
    cancel.cancel();
    assert_eq!(thread.join().unwrap(), ErrorKind::Cancelled);
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(held.release().unwrap(), Released::Done);
}

/// Asks several times and counts the shortest overrun, so that a busy machine does not matter.
#[test]
fn acquisition_on_a_locked_database_ends_in_time() {
    let store = TempStore::new();
    let (keeper, raw) = (store.keeper(), store.raw());
    let held = store.keeper().lock("seat").unwrap();
    let wait = Duration::from_millis(400);
    let overruns = (0..8).map(|_| {
        let before = keeper.usage().unwrap().commands;
        let acquiring = keeper.clone();
        let thread = thread::spawn(move || {
            let began = Instant::now();
            let busy = acquiring.try_lock_for("seat", wait);
            assert!(!matches!(busy, Ok(Some(_))));
            began.elapsed().saturating_sub(wait)
        });
        until("the waiter is queued", || waiters(&raw) == 1);
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
        let overrun = thread.join().unwrap();
        raw.execute_batch("ROLLBACK; DELETE FROM waiter").unwrap();
        assert!(keeper.usage().unwrap().commands > before);
        overrun
    });
    let shortest = overruns.min().unwrap();
    assert!(shortest < Duration::from_millis(150), "{shortest:?}");
    drop((held, keeper));
    until("the keepers have ended", || {
        store.files().iter().all(|file| !file.contains("-wake-"))
    });
}

#[test]
fn statement_without_an_end_is_interrupted() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let held = keeper.lock("other").unwrap();
    store.raw().execute_batch(
        "CREATE TRIGGER hostile AFTER INSERT ON lock BEGIN
           SELECT count(*) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n);
         END",
    ).unwrap();
    let error = keeper.try_lock("seat").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("trigger"), "{error}");
    held.release().unwrap();
}

/// What another program puts into the schema does not reach what SQLite calls unsafe there.
#[test]
fn schema_of_another_program_is_not_trusted() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let trigger = "CREATE TRIGGER hostile AFTER INSERT ON lock BEGIN
        SELECT count(*) FROM pragma_database_list; END";
    store.raw().execute_batch(trigger).unwrap();
    let error = keeper.try_lock("seat").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(format!("{error:?}").contains("unsafe"), "{error:?}");
}

/// Queues a waiter of this process that does not respond, like a stopped process.
pub(super) fn silent_waiter(store: &TempStore) -> i64 {
    // Its row has the identity of this process.
    let _own = store.keeper().lock("own").unwrap();
    let raw = store.raw();
    raw.execute_batch(
        "INSERT INTO waiter (namespace, name, permits, mode, pid, start, place, wake, stale)
         SELECT namespace, 'seat', 0, 0, pid, start, place, '', 0 FROM lock WHERE name = 'own'",
    )
    .unwrap();
    raw.last_insert_rowid()
}

#[test]
fn reservation_of_an_unresponsive_waiter_goes_to_the_next() {
    let store = TempStore::new();
    let raw = store.raw();
    let holder = store.keeper().lock("seat").unwrap();
    let late = silent_waiter(&store);
    let waiting = store.keeper();
    let thread = thread::spawn(move || waiting.lock("seat").unwrap().release().unwrap());
    until("the waiter is queued", || waiters(&raw) == 2);
    drop(holder);
    assert_eq!(thread.join().unwrap(), Released::Done);
    assert_eq!(
        count(&raw, "waiter WHERE stale = 1"),
        1,
        "the unresponsive waiter stays queued"
    );
    // The unresponsive waiter delays the others once, not again at every release.
    let keeper = store.keeper();
    let attempt = || keeper.try_lock("seat").unwrap().unwrap();
    attempt().release().unwrap();
    let guard = attempt();
    let second = silent_waiter(&store);
    assert!(late < second);
    raw.execute("UPDATE lock SET contended = 1 WHERE name = 'seat'", ())
        .unwrap();
    guard.release().unwrap();
    let kept = raw.query_row("SELECT reserved FROM lock WHERE name = 'seat'", (), |row| {
        row.get(0)
    });
    assert_eq!(kept, Ok(second), "the unresponsive waiter is passed over");
}
