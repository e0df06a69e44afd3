//! Shared locks and permits.

use std::os::unix::net::UnixDatagram;
use std::thread::JoinHandle;

use lockkeeper_core::Mode;

use super::processes::{self, Running, spawn_test};
use super::waiting::silent_waiter;
use super::*;
use crate::modes::{TestStore, mode_cases};

struct SqliteStore {
    folder: TempStore,
    clock: Arc<dyn Clock>,
}

impl TestStore for SqliteStore {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            folder: TempStore::new(),
            clock,
        }
    }

    fn open(&self) -> Arc<dyn LockProvider> {
        self.folder.provider_with_clock(Arc::clone(&self.clock))
    }

    fn assert_empty(&self) {
        let raw = self.folder.raw();
        assert_eq!((waiters(&raw), locks(&raw)), (0, 0));
    }
}

mode_cases!(SqliteStore);

/// The variable that names the database for [`child`] in another process. The child acquires a shared
/// lock and one of two permits, and holds them until standard input ends.
const CHILD: &str = "TESTKIT_LOCAL_MODES_FILE";

const TWO: Mode = Mode::Permit { limit: 2 };

fn mode(mode: Mode) -> AcquireOptions {
    AcquireOptions::new().mode(mode)
}

/// Acquires `seat` in a thread, and waits until it is queued.
fn queue(store: &TempStore, options: AcquireOptions) -> JoinHandle<Result<LockGuard, Error>> {
    let (keeper, raw) = (store.keeper(), store.raw());
    let before = waiters(&raw);
    let waiting = thread::spawn(move || Ok(keeper.acquire("seat", &options)?.unwrap()));
    until("the waiter is queued", || waiters(&raw) > before);
    waiting
}

#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let open = || keeper(open(Path::new(&path)).unwrap());
    let held = [Mode::Shared, TWO].map(|it| open().acquire("seat", &mode(it)).unwrap());
    println!("\nheld");
    // Standard input ends with the test.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(held);
}

fn spawn_holder(store: &TempStore) -> Running {
    let mut child = spawn_test("sqlite::modes::child", CHILD, store);
    child.wait_until_held();
    child
}

#[cfg(target_os = "linux")]
#[test]
fn leases_of_dead_processes_are_taken_over_at_once() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let attempt = |it| {
        let attempted = keeper.acquire("seat", &mode(it).wait(Duration::ZERO));
        attempted.unwrap().is_some()
    };
    let [mut first, second] = [(); 2].map(|()| spawn_holder(&store));
    // Less than the ttl of 30 s.
    let wait = Duration::from_secs(15);
    let permit = queue(&store, mode(TWO).wait(wait));
    let writer = queue(&store, mode(Mode::Exclusive).wait(wait));
    assert!(!attempt(TWO));
    first.0.kill().unwrap();
    let permit = permit.join().unwrap().unwrap();
    assert_eq!(waiters(&store.raw()), 1, "the other reader lives");
    drop(second);
    drop(writer.join().unwrap().unwrap());
    drop(permit);

    let third = spawn_holder(&store);
    assert!(!attempt(Mode::Exclusive) && attempt(TWO));
    drop(third);
    assert!(attempt(Mode::Exclusive), "taken over by one attempt");
    let raw = store.raw();
    assert_eq!(locks(&raw), 1, "the permit of the dead process");
    let expire = "UPDATE lock SET expires = asked + 1 WHERE name = 'seat'";
    raw.execute(expire, ()).unwrap();
    drop(store.provider());
    assert_eq!(locks(&raw), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn reader_gets_in_when_the_writer_before_it_dies() {
    let store = TempStore::new();
    let raw = store.raw();
    let first = store.keeper().acquire("seat", &mode(Mode::Shared)).unwrap();
    let writer = processes::spawn(&store);
    until("the writer is queued", || waiters(&raw) == 1);
    let reader = queue(&store, mode(Mode::Shared));
    drop(writer);
    let reader = reader.join().unwrap().unwrap();
    assert_eq!((waiters(&raw), locks(&raw)), (0, 2));
    drop((first, reader));
    assert_eq!(locks(&raw), 0);
}

#[test]
fn readers_behind_an_unresponsive_one_get_in() {
    let store = TempStore::new();
    let raw = store.raw();
    let writer = store.keeper().lock("seat").unwrap();
    let late = silent_waiter(&store);
    raw.execute("UPDATE waiter SET mode = -1", ()).unwrap();
    let readers = [(); 3].map(|()| queue(&store, mode(Mode::Shared)));
    drop(writer);
    drop(readers.map(|reader| reader.join().unwrap().unwrap()));
    drop(store.keeper().lock("seat").unwrap());
    let stale = raw.query_row("SELECT id FROM waiter WHERE stale = 1", (), |row| {
        row.get(0)
    });
    assert_eq!(stale, Ok(late), "the unresponsive waiter stays queued");
    assert_eq!(locks(&raw), 0);
}

#[test]
fn waiter_is_refused_when_permits_of_another_limit_were_granted() {
    let store = TempStore::new();
    let raw = store.raw();
    let _held = [(); 2].map(|()| store.keeper().acquire("seat", &mode(TWO)).unwrap());
    let waiter = queue(&store, mode(TWO));
    // As if the waiter had been stopped while the holders changed.
    raw.execute("UPDATE lock SET mode = 3 WHERE permits = 1", ())
        .unwrap();
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitMismatch);
    assert!(error.to_string().contains("permits of 3"), "{error}");
    assert_eq!((waiters(&raw), locks(&raw)), (0, 2));
}

#[test]
fn waiter_that_was_granted_notifies_the_next_that_is_admitted() {
    for (asked, stored) in [(Mode::Shared, -1), (TWO, 2)] {
        let store = TempStore::new();
        let raw = store.raw();
        let hold = |it| store.keeper().acquire("seat", &mode(it)).unwrap();
        let held = match asked {
            Mode::Shared => vec![hold(Mode::Exclusive)],
            _ => vec![hold(TWO), hold(TWO)],
        };
        let first = queue(&store, mode(asked));
        let second = silent_waiter(&store);
        let wake = store.socket_prefix() + "waiter";
        let socket = UnixDatagram::bind(store.folder.path().join(&wake)).unwrap();
        let limit = Duration::from_secs(60);
        socket.set_read_timeout(Some(limit)).unwrap();
        raw.execute(
            "UPDATE waiter SET permits = ?1, mode = ?2, wake = ?3 WHERE id = ?4",
            (asked.is_permit(), stored, wake, second),
        )
        .unwrap();
        drop(held);
        let first = first.join().unwrap().unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
        drop(first);
    }
}
