use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, CommitProof, Config, Drivers, LeasePolicy, LockKeeper,
    ManualClock, ProofValue, Released, Wait,
};
use rusqlite::Connection;

use super::db::failure;
use super::*;
use crate::testing::{Spy, until};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn provider(&self) -> SqliteProvider {
        SqliteProvider::open(self.path().to_str().unwrap(), "default").unwrap()
    }

    fn keeper(&self) -> LockKeeper {
        keeper(self.provider())
    }

    fn raw(&self) -> Connection {
        let raw = Connection::open(self.path()).unwrap();
        raw.busy_timeout(Duration::from_secs(60)).unwrap();
        raw
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    }
}

fn keeper(provider: SqliteProvider) -> LockKeeper {
    LockKeeper::builder(Arc::new(provider))
        .handover_max(0)
        .wait(Wait::Forever)
        .build()
        .unwrap()
}

fn count(raw: &Connection, rows: &str) -> i64 {
    raw.query_row(&format!("SELECT count(*) FROM {rows}"), (), |row| {
        row.get(0)
    })
    .unwrap()
}

fn waiters(raw: &Connection) -> i64 {
    count(raw, "waiter")
}

fn locks(raw: &Connection) -> i64 {
    count(raw, "lock WHERE name <> ''")
}

fn refused(path: &Path) -> Error {
    SqliteProvider::open(path.to_str().unwrap(), "default").unwrap_err()
}

#[test]
fn what_is_wrong_with_a_url_is_said() {
    let drivers = Drivers::new().with(SqliteDriver);
    for (url, hint) in [
        ("sqlite:", "sqlite:/var/lib/app/locks.db"),
        ("sqlite://host/locks.db", "one slash"),
        ("sqlite::memory:", "write memory:"),
        ("sqlite:a%00b", "path of a file"),
    ] {
        let error = drivers.open(&Config::from_url(url).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    use std::error::Error as _;
    let place = Place::new();
    let folder = place.folder.path();

    let error = refused(&folder.join("missing/locks.db"));
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(
        error.to_string().contains("does not exist; create it"),
        "{error}"
    );
    assert!(error.source().is_some());

    fs::write(
        folder.join("text"),
        "no database, and long enough to be seen as none ".repeat(9),
    )
    .unwrap();
    let error = refused(&folder.join("text"));
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(
        error.to_string().contains("not a whole SQLite database"),
        "{error}"
    );
    assert!(error.source().is_some());
    for no_file in [folder.to_owned(), folder.join("text/locks.db")] {
        assert_eq!(
            refused(&no_file).kind(),
            ErrorKind::Incompatible,
            "{no_file:?}"
        );
    }

    let other = folder.join("other.db");
    let raw = Connection::open(&other).unwrap();
    raw.execute_batch("CREATE TABLE seats (number)").unwrap();
    let error = refused(&other);
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(
        error.to_string().contains("another application's"),
        "{error}"
    );
    let mode: String = raw
        .query_row("PRAGMA journal_mode", (), |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "it was left as it was");

    drop(place.provider());
    place.raw().pragma_update(None, "user_version", 2).unwrap();
    let error = refused(&place.path());
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("upgrade"), "{error}");
}

/// Not even root writes to sysfs or makes files in it.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_refused() {
    let error = refused(Path::new("/sys/locks.db"));
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("write permission"), "{error}");
    assert_eq!(
        failure(code(rusqlite::ffi::SQLITE_READONLY)).kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(
        failure(code(rusqlite::ffi::SQLITE_IOERR)).kind(),
        ErrorKind::Unknown
    );
}

fn code(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

#[cfg(unix)]
#[test]
fn the_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let _guard = place.keeper().lock("seat").unwrap();
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let mode = fs::metadata(place.folder.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let given = place.folder.path().join("given.db");
    drop(Connection::open(&given).unwrap());
    fs::write(&given, "").unwrap();
    fs::set_permissions(&given, fs::Permissions::from_mode(0o660)).unwrap();
    drop(SqliteProvider::open(given.to_str().unwrap(), "default").unwrap());
    assert_eq!(
        fs::metadata(&given).unwrap().permissions().mode() & 0o777,
        0o660
    );
}

#[test]
fn debug_shows_the_place() {
    let shown = format!("{:?}", Place::new().provider());
    assert!(
        shown.contains("locks.db") && shown.contains("default"),
        "{shown}"
    );
}

#[test]
fn every_string_is_a_lock_of_its_own() {
    let place = Place::new();
    let keeper = place.keeper();
    let names = [
        "a", "A", "a ", "a\0", "a\0b", "a\0c", "ä", "a\u{308}", "Ä", "ß", "ss", "1", "01",
    ];
    let guards: Vec<_> = names
        .map(|name| keeper.try_lock(name).unwrap().expect(name))
        .into();
    let other = place.keeper();
    for name in names {
        assert!(other.try_lock(name).unwrap().is_none(), "{name:?}");
    }
    let space = SqliteProvider::open(place.path().to_str().unwrap(), "default\0").unwrap();
    assert!(self::keeper(space).try_lock("a").unwrap().is_some());
    drop(guards);
    assert_eq!(locks(&place.raw()), 0);
}

#[test]
fn epochs_grow_with_a_clock_that_steps_back_and_with_a_new_file() {
    let place = Place::new();
    let spy = Spy::new(Arc::new(place.provider()));
    let asker = LockKeeper::builder(spy.provider()).build().unwrap();
    let mut first = spy.acquire(&asker, "a");
    // As if the clock had been an hour ahead when the last grant was made.
    let ahead = i64::try_from(first.epoch()).unwrap() + 3_600_000_000;
    place
        .raw()
        .execute("UPDATE lock SET epoch = ?1 WHERE name = ''", (ahead,))
        .unwrap();
    let mut second = spy.acquire(&asker, "b");
    assert_eq!(second.epoch(), ahead.cast_unsigned() + 1);
    assert_eq!(first.release(), Released::Done);
    let mut third = spy.acquire(&asker, "a");
    assert_eq!(third.epoch(), second.epoch() + 1);
    second.release();
    third.release();

    let gone = Place::new();
    let before = gone.keeper().lock("a").unwrap().token();
    for file in gone.files() {
        fs::remove_file(gone.folder.path().join(file)).unwrap();
    }
    assert!(gone.keeper().lock("a").unwrap().token() > before);
}

#[test]
fn a_late_renewal_is_refused_and_a_late_release_harmless() {
    let place = Place::new();
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let path = place.path();
    let open = || {
        SqliteProvider::with_clock(path.to_str().unwrap(), "default", Arc::clone(&shared)).unwrap()
    };
    let spy = Spy::new(Arc::new(open()));
    let ttl = Duration::from_secs(10);
    let asker = LockKeeper::builder(spy.provider())
        .clock(Arc::clone(&shared))
        .lease(LeasePolicy::Fixed { ttl })
        .build()
        .unwrap();
    let mut first = spy.acquire(&asker, "seat");
    clock.advance(ttl - Duration::from_nanos(1));
    assert!(spy.try_acquire(&asker, "seat").is_none());
    assert!(first.is_renewed(&*shared));
    clock.advance(ttl);
    assert!(
        !first.is_renewed(&*shared),
        "nobody took it, and it is late"
    );
    let mut second = spy.acquire(&asker, "seat");
    assert!(second.epoch() > first.epoch());
    assert!(!first.is_renewed(&*shared));
    assert_eq!(first.release(), Released::AlreadyLost);
    assert!(second.is_renewed(&*shared));
    clock.advance(ttl);
    assert_eq!(second.release(), Released::AlreadyLost, "its own, but late");
    assert_eq!(locks(&place.raw()), 0);
    assert_eq!(spy.acquire(&asker, "seat").release(), Released::Done);
}

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
fn silent_waiter(raw: &Connection) -> i64 {
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

/// What [`child`] does when it is not a test: takes a lock, says so, and holds it until killed.
const CHILD: &str = "LOCKKEEPER_LOCAL_TEST_CHILD";

#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let keeper = keeper(SqliteProvider::open(&path, "default").unwrap());
    let guard = keeper.lock("seat").unwrap();
    println!("\nheld");
    // Ends when the test that started it does, whatever happens there.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(guard);
}

struct Running(Child, Option<BufReader<ChildStdout>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(place: &Place) -> Running {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::tests::child", "--nocapture"])
        .env(CHILD, place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let out = child.stdout.take().map(BufReader::new);
    Running(child, out)
}

fn wait_until_held(child: &mut Running) {
    let out = child.1.as_mut().unwrap();
    let held = out.lines().map_while(Result::ok).any(|line| line == "held");
    assert!(held, "the child says that it holds");
}

#[cfg(target_os = "linux")]
#[test]
fn a_dead_holders_lock_is_taken_over_at_once() {
    let place = Place::new();
    let raw = place.raw();
    let mut child = spawn(&place);
    wait_until_held(&mut child);
    let waiting = place.keeper();
    assert!(waiting.capabilities().has(Capability::DeadOwnerTakeOver));
    assert!(waiting.try_lock("seat").unwrap().is_none());
    let thread = {
        let waiting = waiting.clone();
        // Far less than the ttl, which is 30 s.
        thread::spawn(move || {
            waiting
                .try_lock_for("seat", Duration::from_secs(15))
                .unwrap()
                .is_some()
        })
    };
    until("it stands in line", || waiters(&raw) == 1);
    child.0.kill().unwrap();
    assert!(thread.join().unwrap(), "taken over while it waited");
    drop(child);

    let mut child = spawn(&place);
    wait_until_held(&mut child);
    drop(child);
    assert!(
        waiting.try_lock("seat").unwrap().is_some(),
        "taken over by one attempt"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_dead_waiters_place_and_socket_are_removed() {
    let place = Place::new();
    let raw = place.raw();
    let holder = place.keeper().lock("seat").unwrap();
    let child = spawn(&place);
    until("it stands in line", || waiters(&raw) == 1);
    let waiting = place.keeper();
    let thread = thread::spawn(move || waiting.lock("seat").unwrap().release().unwrap());
    until("the second does, too", || waiters(&raw) == 2);
    drop(child);
    drop(holder);
    assert_eq!(thread.join().unwrap(), Released::Done);
    assert_eq!((waiters(&raw), locks(&raw)), (0, 0));
}

#[test]
fn many_create_one_file_at_once() {
    let place = Place::new();
    let mut children: Vec<_> = (0..8).map(|_| spawn(&place)).collect();
    // Each frees the lock when nobody can write to it any more.
    for child in &mut children {
        drop(child.0.stdin.take());
    }
    for mut child in children {
        wait_until_held(&mut child);
        assert!(child.0.wait().unwrap().success());
    }
}

#[test]
fn long_folders_have_bells_too() {
    let place = Place::new();
    let folder = place.folder.path().join("long".repeat(40));
    fs::create_dir(&folder).unwrap();
    let path = folder.join("locks.db");
    let provider = SqliteProvider::open(path.to_str().unwrap(), "default").unwrap();
    let bell = provider.store.bells.take();
    assert_eq!(bell.address().is_empty(), !cfg!(target_os = "linux"));
    assert_eq!(
        provider.store.bells.ring(bell.address()),
        wake::Rung::Perhaps
    );
    bell.wait(None, Duration::from_secs(60));
    let gone = bell.address().to_owned();
    drop(bell);
    if cfg!(target_os = "linux") {
        assert_eq!(provider.store.bells.ring(&gone), wake::Rung::Gone);
    }
    assert!(
        fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .all(|file| { !file.file_name().to_string_lossy().contains("-wake-") })
    );
}

/// By both forms of the statement, from an application's own connection.
#[test]
fn a_proof_holds_until_somebody_else_is_granted_the_name() {
    let place = Place::new();
    let keeper = place.keeper();
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_millis(300),
    });
    let app = Connection::open_in_memory().unwrap();
    let path = place.path().into_os_string().into_string().unwrap();
    app.execute("ATTACH ?1 AS lockkeeper", [path]).unwrap();
    let holds = |proof: &CommitProof<'_>| -> bool {
        let text: bool = app.query_row(proof.sql(), (), |row| row.get(0)).unwrap();
        let values = proof.params().iter().map(|value| match value {
            ProofValue::Text(text) => rusqlite::types::Value::from(text.clone()),
            ProofValue::Integer(number) => rusqlite::types::Value::from(*number),
        });
        let values = rusqlite::params_from_iter(values);
        let prepared = app.query_row(proof.statement(), values, |row| row.get(0));
        assert_eq!(prepared, Ok(text), "{proof:?}");
        text
    };
    for name in ["a", "it's \" \\ ? -- 자리", "nul \0 in it"] {
        let late = keeper.acquire(name, &fixed).unwrap().unwrap();
        let proof = late.commit_proof().unwrap();
        assert!(holds(&proof), "{name:?}");
        let next = place.keeper().lock(name).unwrap();
        assert!(!holds(&proof), "{name:?}");
        assert!(holds(&next.commit_proof().unwrap()), "{name:?}");
    }
}
