//! Writers in the way, and the line of those who wait.

use super::*;

#[test]
fn a_writer_in_the_way_is_waited_for() {
    let place = Place::new();
    let keeper = place.keeper();
    let raw = place.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let options = AcquireOptions::new().wait(Duration::from_secs(60));
    let (started, has_started) = mpsc::channel();
    let before = keeper.usage().unwrap().commands;
    let asking = keeper.clone();
    let thread = thread::spawn(move || {
        started.send(()).unwrap();
        asking
            .acquire("seat", &options)
            .unwrap()
            .unwrap()
            .release()
            .unwrap()
    });
    has_started.recv().unwrap();
    until("it has tried more than once", || {
        keeper.usage().unwrap().commands > before + 10
    });
    raw.execute_batch("COMMIT").unwrap();
    assert_eq!(thread.join().unwrap(), Released::Done);
}

#[test]
fn a_writer_that_stays_in_the_way_makes_the_store_unavailable() {
    let place = Place::new();
    let keeper = place.keeper();
    let held = keeper.lock("held").unwrap();
    let raw = place.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let error = keeper.try_lock_for("seat", wait).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(
            error.to_string().contains("another process keeps"),
            "{error}"
        );
    }
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    let asking = keeper.clone();
    let before = keeper.usage().unwrap().commands;
    let thread = thread::spawn(move || asking.acquire("seat", &options).unwrap_err().kind());
    until("it tries", || {
        keeper.usage().unwrap().commands > before + 10
    });
    cancel.cancel();
    assert_eq!(thread.join().unwrap(), ErrorKind::Cancelled);
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(held.release().unwrap(), Released::Done);
}

#[test]
fn providers_are_served_in_the_order_of_their_coming_and_leave_nothing() {
    let place = Place::new();
    // Its time stands still, so that nobody can be late for the name that is kept for it.
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let open = || {
        let path = place.path();
        let path = path.to_str().unwrap();
        let provider = SqliteProvider::with_clock(path, "default", Arc::clone(&clock)).unwrap();
        LockKeeper::builder(Arc::new(provider))
            .clock(Arc::clone(&clock))
            .wait(Wait::Forever)
            .build()
            .unwrap()
    };
    let newcomer = open();
    let raw = place.raw();
    let holder = newcomer.lock("seat").unwrap();
    let (said, order) = mpsc::channel();
    let mut threads = Vec::new();
    for number in 0..4 {
        let (keeper, said) = (open(), said.clone());
        threads.push(thread::spawn(move || {
            let guard = keeper.lock("seat").unwrap();
            said.send(number).unwrap();
            drop(guard);
        }));
        until("it stands in line", || waiters(&raw) > number);
    }
    drop(holder);
    while threads.iter().any(|thread| !thread.is_finished()) {
        // May get it only when nobody waits any more.
        if let Some(guard) = newcomer.try_lock("seat").unwrap() {
            assert_eq!(waiters(&raw), 0, "it overtook somebody");
            drop(guard);
        }
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((waiters(&raw), locks(&raw)), (0, 0));
    drop(newcomer);
    until("the keepers have ended", || {
        place.files().iter().all(|file| !file.contains("-wake-"))
    });
}

#[test]
fn a_waiter_that_gives_up_leaves_nothing_and_loses_nothing() {
    let place = Place::new();
    let raw = place.raw();
    let holder = place.keeper().lock("seat").unwrap();
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    let waiting = place.keeper();
    let thread = thread::spawn(move || waiting.acquire("seat", &options).unwrap_err().kind());
    until("it stands in line", || waiters(&raw) == 1);
    cancel.cancel();
    assert_eq!(thread.join().unwrap(), ErrorKind::Cancelled);
    assert_eq!(waiters(&raw), 0);
    let wait = Duration::from_millis(50);
    assert!(place.keeper().try_lock_for("seat", wait).unwrap().is_none());
    assert_eq!(waiters(&raw), 0);
    drop(holder);
    assert_eq!(locks(&raw), 0);
    until("the keepers have ended", || {
        place.files().iter().all(|file| !file.contains("-wake-"))
    });
}

/// Stands in line, lives, and never looks: as a stopped process does.
pub(super) fn silent_waiter(raw: &Connection) -> i64 {
    let own = Process::own();
    raw.execute(
        "INSERT INTO waiter (namespace, name, pid, start, place, wake, stale) VALUES ('default', 'seat', ?1, ?2, ?3, '', 0)",
        (own.pid, line::signed(own.start), &own.place),
    )
    .unwrap();
    raw.last_insert_rowid()
}

#[test]
fn a_name_kept_for_one_that_does_not_come_goes_to_the_next() {
    let place = Place::new();
    let raw = place.raw();
    let holder = place.keeper().lock("seat").unwrap();
    let late = silent_waiter(&raw);
    let waiting = place.keeper();
    let thread = thread::spawn(move || waiting.lock("seat").unwrap().release().unwrap());
    until("it stands in line", || waiters(&raw) == 2);
    drop(holder);
    assert_eq!(thread.join().unwrap(), Released::Done);
    assert_eq!(
        count(&raw, "waiter WHERE stale = 1"),
        1,
        "it keeps its place"
    );
    // Its turn cost the others a grace once, not again at every release.
    let keeper = place.keeper();
    assert!(keeper.try_lock("seat").unwrap().is_some());
    let guard = keeper.try_lock("seat").unwrap().unwrap();
    let second = silent_waiter(&raw);
    assert!(late < second);
    raw.execute("UPDATE lock SET contended = 1 WHERE name = 'seat'", ())
        .unwrap();
    drop(guard);
    let kept = raw.query_row("SELECT reserved FROM lock WHERE name = 'seat'", (), |row| {
        row.get(0)
    });
    assert_eq!(kept, Ok(second), "it is passed over");
}
